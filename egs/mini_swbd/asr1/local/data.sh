#!/usr/bin/env bash
# Stage 1 makes the discs, and then data/ from them as the swbd recipe does. Arguments are
# passed on to make_mini_swbd: its seed and its sizes.
set -euo pipefail
# shellcheck source=../path.sh
. ./path.sh

# Earlier sets would not be those of the new discs, if this script were killed.
rm -rf data/{train_nodup,train_dev,eval2000}
"${python:?}" -m espnet_distopt make_mini_swbd --out corpus "$@"
../../../local/swbd_data.sh --dev_speakers exclude
"$python" -m espnet_distopt make_lexicon --text data/train_nodup/text --text \
    data/train_dev/text --synthesizer --out data/lexicon.txt
