#!/usr/bin/env bash
# This recipe recognizes telephone conversations in the layout of Switchboard, which it
# makes with a speech synthesizer. It downloads nothing and takes minutes on two cores.
# `./run.sh --help` lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../../local/asr.sh \
    --train_set train_nodup --valid_set train_dev --test_sets eval2000 \
    --halves "swbd=^sw_ callhome=^en_" \
    --token_type bpe --nbpe 100 \
    --train_args "--max_epoch 6 --optim_conf lr=0.003" \
    --distopt adpsgd --nlearners 2 \
    --title "mini_swbd: synthetic telephone conversations" \
    --note "**Synthetic speech**: these word error rates say nothing about Switchboard." \
    --command "./run.sh${*:+ $*}" \
    "$@"
