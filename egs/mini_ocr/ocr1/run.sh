#!/usr/bin/env bash
# This recipe recognizes text lines: printed ones, which it renders itself, and strings of
# real handwritten digits. It downloads nothing and takes minutes on two cores.
# `./run.sh --help` lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../../local/asr.sh \
    --feats_type lines --token_type char --ngram_order 6 \
    --train_set train --valid_set dev --test_sets test \
    --halves "known=-known- unseen=-unseen- digits=-digits-" \
    --distopt bmuf_adam --nlearners 2 \
    --title "mini_ocr: printed lines and handwritten digits" \
    --note "**Printed lines are synthetic** (\`known\`: fonts of the training lines, \`unseen\`: others); \`digits\` are strings of real handwritten digits, from other forms than those of the training lines." \
    --command "./run.sh${*:+ ${*@Q}}" \
    "$@"
