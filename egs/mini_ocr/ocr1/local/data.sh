#!/usr/bin/env bash
# Stage 1 makes the lines, and then data/{train,dev,test} from them. Arguments are passed
# on to make_mini_ocr: its seed, its sizes and further fonts.
set -euo pipefail
# shellcheck source=../path.sh
. ./path.sh

# Earlier sets would not be those of the new corpus, if this script were killed.
rm -rf data/{train,dev,test}{,.tmp}
"${python:?}" -m espnet_distopt make_mini_ocr --out corpus "$@"
mkdir -p data
for name in train dev test; do
    cp -r "corpus/$name" "data/$name.tmp"
    mv "data/$name"{.tmp,}
done
