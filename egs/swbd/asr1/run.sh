#!/usr/bin/env bash
# This recipe trains on Switchboard-300 and evaluates on Hub5 2000, from the LDC's discs
# that db.sh names. It uses Fisher and RT-03, too, if you have them. docs/switchboard.md
# says more; `./run.sh --help` lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# There are 500 subwords, as in ESPnet's last BLSTM on this corpus. CTC has no memory of
# its previous output, and most larger units are too rare in 286 hours.
exec ../../../local/asr.sh \
    --train_set train_nodup --valid_set train_dev --test_sets eval2000 \
    --halves "swbd=^sw_ callhome=^en_" \
    --token_type bpe --nbpe 500 --lexicon data/lexicon.txt --ngram_order 4 \
    --speed_perturb_factors "0.9 1.0 1.1" \
    --distopt adpsgd --nlearners 4 --ngpu 1 --nj 8 \
    --title "swbd: Switchboard-300" \
    --command "./run.sh${*:+ ${*@Q}}" \
    "$@"
