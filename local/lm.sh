#!/usr/bin/env bash
# This script trains a language model over the recognizer's tokens, as ESPnet's lm_train
# does. Stage 6 collects statistics and stage 7 trains. The results are OUT/config.yaml
# and OUT/valid.loss.ave.pth.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# options
stage=6                     # first stage: 6 statistics, 7 training
stop_stage=7                # last stage
train_text=                 # Kaldi text files, "data/train/text data/fisher/text"
valid_text=                 # one more
config=conf/lm.yaml         # options of lm_train
token_type=bpe              # word, char or bpe
token_list=                 # the recognizer's tokens.txt
bpemodel=none               # and its bpe.model
stats=                      # directory for statistics and the joined text
out=                        # directory for the model
ngpu=0                      # GPUs
# end of options

# shellcheck source=log.sh
. "$here/log.sh"
# shellcheck source=parse_options.sh
. "$here/parse_options.sh"
# shellcheck source=jobs.sh
. "$here/jobs.sh"
# shellcheck source=shapes.sh
. "$here/shapes.sh"
python=${python:-python3}
# shellcheck source=backend.sh
. "$here/backend.sh"

for needed in train_text valid_text token_list stats out; do
    [ -n "${!needed}" ] || die "lm.sh: --$needed is needed"
done
# shellcheck disable=SC2086  # The variable is a list of files.
for needed in $train_text "$valid_text" "$token_list" "$config"; do
    [ "$dry_run" = true ] || [ -s "$needed" ] ||
        die "lm.sh: $needed: no such file, or empty"
done

# join_texts OUT FILES...: write the utterances of FILES that have words, sorted.
join_texts() {
    local twice
    awk 'NF > 1' "${@:2}" | sort -k 1,1 >"$1.tmp"
    twice=$(awk '$1 == last { print $1; exit } { last = $1 }' "$1.tmp")
    [ -z "$twice" ] || die "lm.sh: utterance $twice comes twice in ${*:2}"
    [ -s "$1.tmp" ] || die "lm.sh: no utterance has words in ${*:2}"
    mv "$1"{.tmp,}
}

# prepare: write the texts of the training and the validation set.
prepare() {
    local sentences
    rm -rf "$stats"
    mkdir -p "$stats"
    # shellcheck disable=SC2086  # The variable is a list of files.
    join_texts "$stats/train.txt" $train_text
    join_texts "$stats/valid.txt" "$valid_text"
    sentences=$(wc -l <"$stats/train.txt")
    log "language model: $((sentences)) sentences to train on"
}

# On this machine the commands' stdout is dropped, as all that matters is in their logs.
# With Slurm, stdout shows the jobs.
exec 3>/dev/null
[ "$cmd_backend" = local ] || exec 3>&1
# The commands of both stages have these options in common.
lm_train=(
    "$python" -m espnet_distopt.bin.lm_train --config "$config"
    --use_preprocessor true --bpemodel "$bpemodel" --token_type "$token_type"
    --token_list "$token_list" --non_linguistic_symbols none --cleaner none --g2p none
    --train_data_path_and_name_and_type "$stats/train.txt,text,text"
    --valid_data_path_and_name_and_type "$stats/valid.txt,text,text"
)

if [ "$stage" -le 6 ] && [ 6 -le "$stop_stage" ]; then
    [ "$dry_run" = true ] || prepare
    job stats lm_stats "$stats/collect_stats.log" \
        "collecting statistics of the language model" -- \
        "${lm_train[@]}" --collect_stats true --ngpu 0 --output_dir "$stats" \
        --train_shape_file "$stats/train.txt" --valid_shape_file "$stats/valid.txt" >&3
    [ "$dry_run" = true ] || with_vocabulary "$stats" "$token_type" "$token_list"
fi

if [ "$stage" -le 7 ] && [ 7 -le "$stop_stage" ]; then
    [ "$dry_run" = true ] || [ -s "$stats/valid/text_shape.$token_type" ] ||
        die "$stats/valid/text_shape.$token_type is missing: run from stage 6 (--stage 6)"
    log "training $out, log in $out/train.log"
    job lm lm "$out/train.log" "training $out" --gpus_per_task "$ngpu" -- \
        "${lm_train[@]}" --output_dir "$out" --resume true --ngpu "$ngpu" \
        --fold_length 150 \
        --train_shape_file "$stats/train/text_shape.$token_type" \
        --valid_shape_file "$stats/valid/text_shape.$token_type" >&3
fi
