#!/usr/bin/env bash
# Stage 1: make the lines, then data/{train,dev,test}.
# Arguments are passed to make_mini_ocr: its seed, sizes and more fonts.
set -euo pipefail
# shellcheck source=../path.sh
. ./path.sh

"${python:?}" -m espnet_distopt.bin.make_mini_ocr --out corpus "$@"
mkdir -p data
for name in train dev test; do
    rm -rf "data/$name" "data/$name.tmp"
    cp -r "corpus/$name" "data/$name.tmp"
    mv "data/$name"{.tmp,}
done
