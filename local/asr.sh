#!/usr/bin/env bash
# This script runs the stages of a recipe for speech or text lines; the stages have
# ESPnet's numbers. A recipe's run.sh starts it in the recipe's own directory, which has
# path.sh, cmd.sh, conf/ and local/data.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# options
stage=1                     # first stage: 1 data, 3 format, 5 tokens, 6-7 language model,
stop_stage=13               # last stage:  10 statistics, 11 training, 12 decoding, 13 scoring
distopt=adpsgd              # algorithms to compare: none allreduce adpsgd bmuf_adam ...
nlearners=2                 # learners that train together (none: always one)
restarts=3                  # how often a learner that dies is started again, if others survive
slow=                       # slow learners on this machine, e.g. 1:2 (twice as slow)
ngpu=0                      # GPUs of each learner: 0 or 1
share_gpu=false             # let all learners use the first GPU, to try things out
nj=2                        # processes that format and decode
system=ctc                  # ctc, or hybrid: HMM states, a lexicon and an n-gram
feats_type=raw              # raw: speech; lines: images of text lines
line_feats=ark              # of lines: ark, or raw, which decodes an image when needed
fs=8000                     # sample rate of speech, Hz; train_config says it, too
speed_perturb_factors=      # of training speech, e.g. "0.9 1.0 1.1"
train_config=conf/train.yaml
train_args=                 # more options of the training, e.g. "--max_epoch 20"
tag=                        # end of the experiments' names, to tell them from others: seed1
decode_config=              # how to decode; of several files, all decode the first algorithm
ctc_decode_config=conf/decode.yaml  # what decode_config is for --system ctc if it is empty
lm_decode_config=conf/decode_lm.yaml  # the same with --use_lm true
inference_asr_model=valid.loss.ave.pth  # which of the experiment's models decodes
use_lm=false                # train a language model and decode with it
lm_config=conf/lm.yaml
lm_train_text=              # more text files (id, words) than the training set's own
ngram_file=                 # decode with this n-gram: over tokens, or over words (search: words)
lexicon=conf/lexicon.txt    # pronunciations (hybrid)
ngram_order=3               # order of the n-gram (hybrid; search: words or ngram_beam)
ali=                        # Kaldi's alignments, e.g. exp/tri4_ali, instead of a GMM (hybrid)
gmm_args=                   # more options of gmm_train (hybrid)
token_type=bpe              # word, char or bpe
nbpe=100                    # number of subwords (bpe)
feats_normalize=utterance_mvn  # of speech; or global_mvn, over the training set
train_set=train             # names below data/
valid_set=dev
test_sets="test"
halves=                     # parts scored by themselves: "NAME=REGEX-OF-ID ..."
local_data_opts=            # passed to local/data.sh
expdir=exp                  # where experiments go
slurm_config=conf/slurm.yaml  # what jobs ask for (cmd_backend=slurm)
submit_all=false            # queue all stages as jobs that wait for each other, and end
dry_run=false               # only show the batch scripts of the jobs
title=Results               # heading of RESULTS.md
note=                       # sentence above its figures
picture=                    # a plot of the losses over time to write, e.g. exp/RESULTS.png
next=                       # what to say at the end
command=./run.sh            # the command it names
# end of options

# shellcheck source=log.sh
. "$here/log.sh"
given=("$@")
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
# shellcheck source=backend.sh
. "$here/backend.sh"
# shellcheck source=made_of.sh
. "$here/made_of.sh"
# shellcheck source=stages.sh
. "$here/stages.sh"
# shellcheck source=experiments.sh
. "$here/experiments.sh"
case $feats_type in
    raw)
        # shellcheck source=feats_raw.sh
        . "$here/feats_raw.sh"
        ;;
    lines)
        # shellcheck source=feats_lines.sh
        . "$here/feats_lines.sh"
        ;;
    *) die "--feats_type $feats_type: expected raw or lines" ;;
esac

decode_options=() ngram_options=() arpa=
case $system in
    ctc)
        [ "$use_lm" = false ] || [ ! -f "$lm_decode_config" ] || ctc_decode_config=$lm_decode_config
        decode_config=${decode_config:-$ctc_decode_config}
        # shellcheck source=system_ctc.sh
        . "$here/system_ctc.sh"
        ;;
    hybrid)
        [ "$train_config" != conf/train.yaml ] || train_config=conf/train_hybrid.yaml
        decode_config=${decode_config:-conf/decode_hybrid.yaml}
        # shellcheck source=system_hybrid.sh
        . "$here/system_hybrid.sh"
        ;;
    *) die "--system $system: expected ctc or hybrid" ;;
esac
use_system

# shellcheck disable=SC2206  # The variable decode_config is a list of files.
configs=("$train_config" $decode_config)
[ "$use_lm" = false ] || configs+=("$lm_config")
[ -z "$ngram_file" ] || configs+=("$ngram_file")
command -v "${python:?}" >/dev/null || die "$python not found: run make setup, or set PYTHON"
[ "$stage" -le "$stop_stage" ] || die "--stage $stage is behind --stop_stage $stop_stage"
[[ $distopt == *[![:space:]]* ]] || die "--distopt names no algorithm"
[[ $test_sets == *[![:space:]]* ]] || die "--test_sets names no set"
[ "$inference_asr_model" != checkpoint.pth ] ||
    die "--inference_asr_model checkpoint.pth: the state of a training; take latest.pth"
[ "$nlearners" -ge 1 ] || die "--nlearners $nlearners: at least one must learn"
[ "$restarts" -ge 0 ] || die "--restarts $restarts: expected a number from 0"
[ "$nj" -ge 1 ] || die "--nj $nj: at least one process must work"
[[ $tag =~ ^[[:alnum:]._-]*$ ]] ||
    die "--tag $tag: expected letters, digits, dots, underscores and hyphens"
[ "$ngpu" -le 1 ] || die "--ngpu $ngpu: a learner has one GPU; use --nlearners for more"
[ "$share_gpu" = false ] || [ "$ngpu" = 1 ] || die "--share_gpu true needs --ngpu 1"
for config in "${configs[@]}"; do
    [ -f "$config" ] || die "$config: no such file (in $PWD)"
done
use_feats
check_made
check_formatted

decode_names=
for each in $decode_config; do
    searching "$each"
    [[ " $decode_names " != *" $decode_name "* ]] ||
        die "--decode_config: two of its files are named $(basename "$each")"
    decode_names+=" $decode_name"
done
check_backend
[ -z "$slow" ] || [ "$cmd_backend" = local ] || die "--slow needs cmd_backend=local"
[ "$share_gpu" = false ] || [ "$cmd_backend" = local ] ||
    die "--share_gpu needs cmd_backend=local"
[ "$submit_all" = false ] || [ "$cmd_backend" = slurm ] ||
    die "--submit_all needs cmd_backend=slurm"

# renew_ngram: make the n-gram of the search unless stage 5 has made it with this token
# list and training set; it may have run for another configuration of the decoding.
renew_ngram() {
    [ -z "$arpa" ] || { [ "$arpa" -nt "$token_list" ] && same_text "$arpa" "$sentences"; } ||
        make_ngram
}

# Unknown options of the training are refused before hours of preparation.
unchecked=()
! chosen 11 || { [ -z "$train_args" ] && ! chosen 1; } ||
    unchecked=(--train_program "$train_program" --train_args "$train_args")
# If this run trains and decodes, the training must write the model that decodes.
written=()
{ ! chosen 11 || ! chosen 12 || [[ $train_args == *best_model_criterion* ]]; } ||
    written=(--model "$inference_asr_model")
# If it trains on this machine, there must be a GPU for each learner, or one for all, who
# then go by gloo, unless the user prefers NCCL.
gpus=()
[ "$share_gpu" = false ] || [[ $train_args == *dist_backend* ]] ||
    train_args="--dist_backend gloo${train_args:+ $train_args}"
[ "$ngpu" = 0 ] || [ "$cmd_backend" = slurm ] || [ "$dry_run" = true ] || ! chosen 11 ||
    [[ $train_args == *local_rank* ]] || gpus=(--gpus)
[ "$share_gpu" = false ] || [ "${#gpus[@]}" = 0 ] || gpus+=(--share_gpu)
for algorithm in $distopt; do
    experiment "$algorithm"
    run "$python" -m espnet_distopt check --config "$train_config" "${options[@]}" \
        --nlearners "$learners" "${written[@]}" "${gpus[@]}" "${unchecked[@]}"
    unchecked=()
done

if [ "$submit_all" = true ]; then
    # shellcheck source=submit_all.sh
    . "$here/submit_all.sh"
    exit
fi

if at_stage 1 "data"; then
    # shellcheck disable=SC2086  # The variable is a list of options.
    locally local/data.sh $local_data_opts
fi

# A half without utterances would only end stage 13. Halves by an STM are parts of the STM.
parts=()
for half in $halves; do parts+=(--half "$half"); done
if [ -n "$halves" ] && { chosen 1 || chosen 13; }; then
    for name in $test_sets; do
        [ ! -f "data/$name/text" ] || [ -f "data/$name/stm" ] ||
            tool check --text "data/$name/text" "${parts[@]}"
    done
fi

if at_stage 3 "format"; then
    for name in "$train_set" "$valid_set" $test_sets; do
        require "data/$name/$data_scp" 1
        formatting "$name"
        if [ "$cmd_backend" = local ]; then
            run "$python" "${format[@]}"
        else
            job format "format.$name" "$expdir/log/format.$name.log" "formatting $name" \
                --cpus_per_task "$nj" -- "$python" "${format[@]}"
        fi
        made_of "dump/$name/text" "data/$name/text"
    done
fi

if at_stage 5 "token list"; then
    require "dump/$train_set/text" 3
    make_tokens
fi

# language_model STAGE: run one stage of local/lm.sh.
language_model() {
    require "$token_list" 5
    require "data/$train_set/text" 1
    run "$here/lm.sh" --stage "$1" --stop_stage "$1" --config "$lm_config" \
        --train_text "$lm_texts" --valid_text "data/$valid_set/text" \
        --token_type "$token_type" --token_list "$token_list" --bpemodel "$bpemodel" \
        --stats "$lm_statsdir" --out "$lmdir" --ngpu "$ngpu"
}

if [ "$use_lm" = true ]; then
    if at_stage 6 "statistics of the language model"; then
        language_model 6
        # shellcheck disable=SC2086  # The variable is a list of files.
        made_of "$lm_statsdir/train.txt" $lm_texts
    fi
    if at_stage 7 "training of the language model"; then
        # shellcheck disable=SC2086  # The variable is a list of files.
        require_same_text 6 "$lm_statsdir/train.txt" $lm_texts
        language_model 7
    fi
fi

if at_stage 10 "statistics"; then
    statistics
    made_of "$stats_made" "dump/$train_set/text"
fi

if at_stage 11 "training"; then
    require "$stats_made" 10
    require_same_text 10 "$stats_made" "dump/$train_set/text"
    for algorithm in $distopt; do
        experiment "$algorithm"
        training
        log "training $exp, log in $exp/train.log"
        together=$learners
        [ "$algorithm" != none ] || together=0
        learners "$together" "$ngpu" "train.$label" "$exp/train.log" "training $exp" \
            "${train[@]}"
    done
fi

if at_stage 12 "decoding"; then
    [ "$use_lm" = false ] || require "$lmdir/valid.loss.ave.pth" 7
    renew_ngram
    for algorithm in $systems; do
        experiment "$algorithm"
        require "$exp/$model" 11
        for each in $(ways "$algorithm"); do
            searching "$each"
            for name in $test_sets; do
                ! incomplete "$name" || complete_set "$name"
                decoding "$name"
                run "$here/decode.sh" "${decode[@]}"
            done
        done
    done
fi

if at_stage 13 "scoring" && [ "$dry_run" = false ]; then
    for algorithm in $systems; do
        experiment "$algorithm"
        for each in $(ways "$algorithm"); do
            searching "$each"
            for name in $test_sets; do
                require "$exp/$decode_name/$name/text" 12
                require_same_text 12 "$exp/$decode_name/$name/text" "$exp/$model"
                log "scoring $exp/$decode_name on $name"
                score "$name" "$exp/$decode_name/$name" "${parts[@]}"
            done
        done
    done
    # A recipe has quoted each of its words, and most need no quotes.
    command=$(sed -E "s/'([[:alnum:]_.,:=/-]+)'/\1/g" <<<"$command")
    report=(--title "$title" --command "$command")
    [ -z "$note" ] || report+=(--note "$note")
    # Both systems of a recipe for speech come into one table.
    tables=("$expdir"/{asr,hybrid,ocr}_*/)
    for i in "${!tables[@]}"; do [ -d "${tables[i]}" ] || unset "tables[i]"; done
    tool wer_report "${tables[@]}" "${report[@]}" >"$expdir/RESULTS.md.tmp"
    mv "$expdir/RESULTS.md.tmp" "$expdir/RESULTS.md"
    log "results in $expdir/RESULTS.md:"
    sed '/^## /,$d' "$expdir/RESULTS.md"
    if [ -n "$picture" ]; then
        locally "$python" -m espnet_distopt.bin.status "$expdir/$task"_*/ --compare "$picture" \
            --title "$title${slow:+ (slow learners: $slow)}" >/dev/null
        log "losses over time in $picture"
    fi
    [ -z "$next" ] || echo "$next"
fi

for each in "${stages[@]}"; do chosen "$each" && exit; done
log "the options are right; no stage from $stage to $stop_stage, so none was run: there are ${stages[*]}"
