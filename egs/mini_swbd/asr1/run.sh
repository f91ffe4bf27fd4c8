#!/usr/bin/env bash
# This recipe recognizes telephone conversations in the layout of Switchboard, which it
# makes with a speech synthesizer. It downloads nothing, and compares two algorithms in
# five minutes on two cores while learner 1 runs at half speed.
# `./run.sh --help` lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../../local/asr.sh \
    --local_data_opts "--conversations 60 --test_conversations 4 --turns 60 --speakers 80 --topics 2 --alternatives 2" \
    --train_set train_nodup --valid_set train_dev --test_sets eval2000 \
    --halves "swbd=^sw_ callhome=^en_" \
    --token_type word --lexicon data/lexicon.txt \
    --ctc_decode_config "conf/decode.yaml conf/decode_words.yaml" \
    --distopt "adpsgd allreduce" --nlearners 2 --slow 1:2 \
    --title "mini_swbd: synthetic telephone conversations" \
    --note "**Synthetic speech**: these word error rates say nothing about Switchboard." \
    --command "./run.sh${*:+ ${*@Q}}" \
    --picture exp/RESULTS.png --next "\
exp/RESULTS.png shows what this package is for: the loss over time of both trainings, in which
learner 1 ran at half speed. What to try next:
    cd egs/mini_swbd/asr1
    ./run.sh --stage 11 --distopt bmuf_adam        # another algorithm, in the same table
    ./run.sh --stage 11 --slow '' --nlearners 4    # no slow learner, and more of them
    ./run.sh --stage 12 --ngram_order 2            # the search of words with a bigram
    ./run.sh --help                                # all options; README.md has the rest" \
    "$@"
