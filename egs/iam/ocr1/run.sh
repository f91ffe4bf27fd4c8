#!/usr/bin/env bash
# This recipe recognizes lines of English handwriting: the IAM database. IAM=/path is the
# directory of its unpacked archives; docs/ocr.md says more. `./run.sh --help` lists the
# options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../../local/asr.sh \
    --feats_type lines --token_type char --ngram_order 6 \
    --train_set train --valid_set dev --test_sets test \
    --distopt bmuf_adam --nlearners 4 --ngpu 1 --nj 8 \
    --title "iam: lines of handwriting" \
    --command "./run.sh${*:+ ${*@Q}}" \
    "$@"
