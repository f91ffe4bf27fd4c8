#!/usr/bin/env bash
# This recipe recognizes strings of digits that people have spoken: the Free Spoken Digit
# Dataset, at 8 kHz. It takes minutes on two cores. FSDD=/path names a copy of the data;
# without one, stage 1 clones it. `./run.sh --help` lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../../local/asr.sh \
    --train_set train --valid_set dev --test_sets test \
    --halves "known=-test_known- unseen=-test_unseen-" \
    --token_type word \
    --distopt adpsgd --nlearners 2 \
    --title "fsdd: strings of spoken digits" \
    --note "Human speech: single digits joined to strings; \`unseen\` is a speaker who is not in training." \
    --command "./run.sh${*:+ ${*@Q}}" \
    "$@"
