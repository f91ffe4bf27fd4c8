#!/usr/bin/env bash
# Stage 1: make the corpus, then data/ from it as from the LDC discs.
# Arguments are passed to make_mini_swbd: its seed and sizes.
set -euo pipefail
# shellcheck source=../path.sh
. ./path.sh

"${python:?}" -m espnet_distopt.bin.make_mini_swbd --out corpus "$@"
"$python" -m espnet_distopt.bin.prepare_swbd --swb1 corpus/swb1 \
    --eval2000_speech corpus/hub5e_00 --eval2000_text corpus --out data
