#!/usr/bin/env bash
# The stages of a speech recognition recipe, with ESPnet's numbers. A recipe's run.sh
# starts me in its own directory, which holds path.sh, cmd.sh, conf/ and local/data.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# options
stage=1                     # first stage: 1 data, 3 format, 5 tokens, 6-7 language model,
stop_stage=13               # last stage:  10 statistics, 11 training, 12 decoding, 13 scoring
distopt=adpsgd              # algorithms to compare: none allreduce adpsgd bmuf_adam ...
nlearners=2                 # learners that train together (none: always one)
ngpu=0                      # GPUs of each learner: 0 or 1
nj=2                        # processes that format and decode
speed_perturb_factors=      # of the training set, e.g. "0.9 1.0 1.1"
train_config=conf/train.yaml
train_args=                 # more options of asr_train, e.g. "--max_epoch 20"
decode_config=conf/decode.yaml
inference_asr_model=valid.loss.ave.pth  # which of the experiment's models decodes
use_lm=false                # train a language model and decode with it
lm_config=conf/lm.yaml
lm_train_text=              # more text files (id, words) than the training set's own
ngram_file=                 # decode with this n-gram over the tokens (needs kenlm)
token_type=bpe              # word, char or bpe
nbpe=100                    # number of subwords (bpe)
feats_normalize=utterance_mvn  # or global_mvn, over the training set
train_set=train             # names below data/
valid_set=dev
test_sets="test"
halves=                     # parts scored by themselves: "NAME=REGEX-OF-ID ..."
local_data_opts=            # passed to local/data.sh
expdir=exp                  # where experiments go
title=Results               # heading of RESULTS.md
note=                       # sentence above its figures
command=./run.sh            # the command it names
# end of options

# shellcheck source=log.sh
. "$here/log.sh"
# shellcheck source=parse_options.sh
. "$here/parse_options.sh"
# shellcheck source=jobs.sh
. "$here/jobs.sh"
# shellcheck source=shapes.sh
. "$here/shapes.sh"
# shellcheck source=../egs/mini_swbd/asr1/path.sh
. ./path.sh
# shellcheck source=../egs/mini_swbd/asr1/cmd.sh
. ./cmd.sh

case $token_type in
    word | char) token_dir=data/token_list/$token_type bpemodel=none ;;
    bpe) token_dir=data/token_list/bpe_unigram$nbpe bpemodel=$token_dir/bpe.model ;;
    *) die "--token_type $token_type: expected word, char or bpe" ;;
esac
token_list=$token_dir/tokens.txt
statsdir=$expdir/stats_${token_dir##*/}
lm_statsdir=$expdir/lm_stats_${token_dir##*/}
lmdir=$expdir/lm_${token_dir##*/}
lm_texts="data/$train_set/text${lm_train_text:+ $lm_train_text}"
decode_name=$(basename "$decode_config" .yaml)
decode_options=()
configs=("$train_config" "$decode_config")
if [ "$use_lm" = true ]; then
    decode_name+=_lm
    decode_options+=(--lm "$lmdir")
    configs+=("$lm_config")
fi
if [ -n "$ngram_file" ]; then
    decode_name+=_ngram
    decode_options+=(--ngram_file "$ngram_file")
    configs+=("$ngram_file")
fi
command -v "${python:?}" >/dev/null || die "$python not found: run make setup, or set PYTHON"
[ "$nlearners" -ge 1 ] || die "--nlearners $nlearners: at least one must learn"
[ "$nj" -ge 1 ] || die "--nj $nj: at least one process must work"
[ "$ngpu" -le 1 ] || die "--ngpu $ngpu: a learner has one GPU; use --nlearners for more"
for config in "${configs[@]}"; do
    [ -f "$config" ] || die "$config: no such file (in $PWD)"
done
for factor in $speed_perturb_factors; do
    [[ $factor =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
        die "--speed_perturb_factors: expected numbers such as 0.9, not '$factor'"
done
[ -z "$ngram_file" ] || "$python" -c "import kenlm" 2>/dev/null ||
    die "--ngram_file needs the Python package kenlm: pip install kenlm"

# at_stage NUMBER NAME: whether the stage is to run; says so.
at_stage() {
    [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ] && log "stage $1: $2"
}

# require FILE STAGE: end if an earlier stage has not made the file.
require() {
    [ -s "$1" ] || die "$1 is missing: run from stage $2 (--stage $2)"
}

# tool NAME ARGUMENTS...: run a command of the package.
tool() {
    run "$python" -m "espnet_distopt.bin.$1" "${@:2}"
}

# experiment ALGORITHM: sets its directory `exp`, its `learners` and its `options`.
experiment() {
    local conf=conf/distopt/$1.yaml
    learners=$nlearners options=(--distopt "$1")
    [ ! -f "$conf" ] || options+=(--distopt_config "$conf")
    [ "$1" != none ] || learners=1 options=()
    exp=$expdir/asr_$1_$learners
}

for algorithm in $distopt; do
    experiment "$algorithm"
    tool check --config "$train_config" "${options[@]}" --nlearners "$learners"
done

if at_stage 1 "data"; then
    # shellcheck disable=SC2086  # a list of options
    run local/data.sh $local_data_opts
fi

if at_stage 3 "format"; then
    for name in "$train_set" "$valid_set" $test_sets; do
        require "data/$name/wav.scp" 1
        how=(--nj "$nj")
        [[ " $test_sets " != *" $name "* ]] || how+=(--keep_all)
        [ "$name" != "$train_set" ] || [ -z "$speed_perturb_factors" ] ||
            how+=(--speed_factors "$speed_perturb_factors")
        tool format_data "data/$name" "dump/$name" "${how[@]}"
    done
fi

if at_stage 5 "token list"; then
    require "dump/$train_set/text" 3
    tool make_tokens --type "$token_type" --nbpe "$nbpe" \
        --text "dump/$train_set/text" --out "$token_dir"
fi

# language_model STAGE: one of the stages of local/lm.sh.
language_model() {
    require "$token_list" 5
    require "data/$train_set/text" 1
    run "$here/lm.sh" --stage "$1" --stop_stage "$1" --config "$lm_config" \
        --train_text "$lm_texts" --valid_text "data/$valid_set/text" \
        --token_type "$token_type" --token_list "$token_list" --bpemodel "$bpemodel" \
        --stats "$lm_statsdir" --out "$lmdir" --ngpu "$ngpu"
}

if [ "$use_lm" = true ]; then
    if at_stage 6 "statistics of the language model"; then language_model 6; fi
    if at_stage 7 "training of the language model"; then language_model 7; fi
fi

# What collecting statistics and training have in common.
model_options=(
    --config "$train_config"
    --use_preprocessor true --bpemodel "$bpemodel" --token_type "$token_type"
    --token_list "$token_list" --non_linguistic_symbols none --cleaner none --g2p none
    --train_data_path_and_name_and_type "dump/$train_set/wav.scp,speech,kaldi_ark"
    --train_data_path_and_name_and_type "dump/$train_set/text,text,text"
    --valid_data_path_and_name_and_type "dump/$valid_set/wav.scp,speech,kaldi_ark"
    --valid_data_path_and_name_and_type "dump/$valid_set/text,text,text"
)

if at_stage 10 "statistics"; then
    require "dump/$train_set/wav.scp" 3
    require "dump/$valid_set/wav.scp" 3
    require "$token_list" 5
    rm -rf "$statsdir"
    logged "$statsdir/collect_stats.log" "collecting statistics" \
        "$python" -m espnet_distopt.bin.asr_train --collect_stats true --ngpu 0 \
        "${model_options[@]}" --output_dir "$statsdir" \
        --train_shape_file "dump/$train_set/wav.scp" \
        --valid_shape_file "dump/$valid_set/wav.scp"
    with_vocabulary "$statsdir" "$token_type" "$token_list"
fi

# train ALGORITHM: its experiment, resumed if it was interrupted.
train() {
    local launch=()
    [ "$1" = none ] ||
        launch=(-m torch.distributed.run --standalone --nproc_per_node "$learners")
    local normalize=(--normalize "$feats_normalize")
    [ "$feats_normalize" != global_mvn ] ||
        normalize+=(--normalize_conf "stats_file=$statsdir/train/feats_stats.npz")
    log "training $exp: $learners learner(s), log in $exp/train.log"
    # shellcheck disable=SC2086  # a list of options
    logged "$exp/train.log" "training $exp" \
        "$python" "${launch[@]}" -m espnet_distopt.bin.asr_train \
        "${options[@]}" "${model_options[@]}" --output_dir "$exp" --resume true --ngpu "$ngpu" \
        "${normalize[@]}" $train_args \
        --fold_length 80000 --fold_length 150 \
        --train_shape_file "$statsdir/train/speech_shape" \
        --train_shape_file "$statsdir/train/text_shape.$token_type" \
        --valid_shape_file "$statsdir/valid/speech_shape" \
        --valid_shape_file "$statsdir/valid/text_shape.$token_type"
}

if at_stage 11 "training"; then
    require "$statsdir/valid/text_shape.$token_type" 10
    for algorithm in $distopt; do
        experiment "$algorithm"
        train "$algorithm"
    done
fi

if at_stage 12 "decoding"; then
    [ "$use_lm" = false ] || require "$lmdir/valid.loss.ave.pth" 7
    for algorithm in $distopt; do
        experiment "$algorithm"
        require "$exp/$inference_asr_model" 11
        for name in $test_sets; do
            how=("${decode_options[@]}")
            [ ! -f "data/$name/stm" ] || how+=(--align_data "data/$name")
            run "$here/decode.sh" --nj "$nj" --exp "$exp" --data "dump/$name" \
                --model "$inference_asr_model" --config "$decode_config" \
                --out "$exp/$decode_name/$name" "${how[@]}"
        done
    done
fi

if at_stage 13 "scoring"; then
    parts=()
    for half in $halves; do parts+=(--half "$half"); done
    for algorithm in $distopt; do
        experiment "$algorithm"
        for name in $test_sets; do
            require "$exp/$decode_name/$name/text" 12
            log "scoring $exp on $name"
            decoded=$exp/$decode_name/$name
            if [ -f "data/$name/stm" ]; then
                # It may be empty: scoring says so.
                [ -f "$decoded/ctm" ] || require "$decoded/ctm" 12
                tool score_hub5 --stm "data/$name/stm" --glm "data/$name/glm" \
                    --ctm "$decoded/ctm" --out "$decoded/score_wer" "${parts[@]}"
            else
                tool score --ref "dump/$name/text" --hyp "$decoded/text" \
                    --utt2spk "dump/$name/utt2spk" --out "$decoded/score_wer" "${parts[@]}"
            fi
        done
    done
    report=(--title "$title" --command "$command")
    [ -z "$note" ] || report+=(--note "$note")
    tool wer_report "$expdir"/asr_*/ "${report[@]}" >"$expdir/RESULTS.md.tmp"
    mv "$expdir/RESULTS.md.tmp" RESULTS.md
    log "results in RESULTS.md:"
    sed '/^## /,$d' RESULTS.md
fi
