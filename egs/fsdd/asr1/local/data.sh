#!/usr/bin/env bash
# Stage 1 makes data/{train,dev,test}. The test set joins test_known and test_unseen; the
# utterance ids contain these names, so one decoding is enough for both halves. Arguments
# are passed on to prepare_fsdd.
set -euo pipefail
# shellcheck source=../path.sh
. ./path.sh

url=https://github.com/Jakobovski/free-spoken-digit-dataset
copy=downloads/free-spoken-digit-dataset
if [ -z "${FSDD:-}" ]; then
    if [ ! -d "$copy" ]; then
        echo "cloning $url (21 MB); FSDD=/path would use a copy of yours"
        rm -rf "$copy.part"
        mkdir -p downloads
        git clone --quiet --depth 1 "$url" "$copy.part" || {
            echo "error: cannot clone $url: get a copy and set FSDD=/path/to/it" >&2
            exit 2
        }
        mv "$copy.part" "$copy"
    fi
    FSDD=$copy
fi
# An earlier test set would not be that of the new training set, if this script were killed.
rm -rf data/test data/test.tmp
"${python:?}" -m espnet_distopt prepare_fsdd --fsdd "$FSDD" --out data "$@"

mkdir data/test.tmp
for file in wav.scp text utt2spk spk2utt; do
    sort -k1,1 data/test_known/$file data/test_unseen/$file >data/test.tmp/$file
done
mv data/test.tmp data/test
