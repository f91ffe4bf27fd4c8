# shellcheck shell=bash
# This file submits all chosen stages as jobs of Slurm that wait for each other. asr.sh
# sources it where its stages would begin. A stage without learners is asr.sh itself in a
# job, with the local backend.
# shellcheck disable=SC2154  # The variables are those of asr.sh.

# These are the ids of the jobs so far. In a dry run they are numbers from 1.
queued=()

# unqueue: cancel all jobs so far.
unqueue() {
    [ "$dry_run" = false ] && [ "${#queued[@]}" != 0 ] || return 0
    if scancel "${queued[@]}"; then echo "cancelled: ${queued[*]}" >&2; fi
}

# A recipe is queued as a whole or not at all, also if Ctrl-C comes in between.
trap 'unqueue; end_jobs' EXIT

# queue STAGE NAME LOG AFTER [OPTIONS...] -- COMMAND...: submit a job that waits for the
# jobs AFTER, and set `id`. If Slurm refuses the job, end the script.
queue() {
    local how=("$1" "$2" "$3" --nowait --after "$4" "${@:5}")
    if [ "$dry_run" = true ]; then
        id=$((${#queued[@]} + 1))
        slurm "${how[@]}"
    elif ! id=$(slurm "${how[@]}"); then
        die "$(job_name "$2") was not submitted"
    fi
    queued+=("$id")
    log "job $id: $(job_name "$2")${4:+, after $4}, log $3"
}

# queue_stage NUMBER NAME STAGE AFTER [OPTIONS...]: submit a stage of the recipe if it is
# chosen, and set `id`; if it is not chosen, `id` becomes AFTER.
queue_stage() {
    id=$4
    chosen "$1" || return 0
    queue "$3" "$2" "$expdir/log/$2.log" "$4" "${@:5}" -- \
        env "${variables[@]}" "$here/asr.sh" "${given[@]}" \
        --submit_all false --dry_run false --stage "$1" --stop_stage "$1"
}

# queue_decoding SET AFTER: submit the decoding of a set by the current experiment, in the
# current way: its parts, and the job that merges their results.
queue_decoding() {
    local name=$label.$1 out=$exp/$decode_name/$1
    decoding "$1"
    queue decode "decode.$name" "$out/log/decode.JOB.log" "$2" --array "$nj" -- \
        "$here/decode.sh" "${decode[@]}" --part JOB
    queue decode "merge.$name" "$out/log/merge.log" "$id" -- \
        "$here/decode.sh" "${decode[@]}" --part merge
}

[ "$stage" -le 3 ] || require "dump/$train_set/$dump_scp" 3
[ "$stage" -le 5 ] || require "$token_list" 5
[ "$stage" -le 10 ] || require "$stats_made" 10
[ "$stage" != 11 ] || require_same_text 10 "$stats_made" "dump/$train_set/text"
[ "$stage" -le 5 ] || renew_ngram
variables=(queued_backend=local)
for name in ${job_variables:-}; do
    [ -z "${!name:-}" ] || variables+=("$name=${!name}")
done

queue_stage 1 data other ""
queue_stage 3 format format "$id" --cpus_per_task "$nj"
queue_stage 5 tokens other "$id"
tokens=$id with_lm=
if [ "$use_lm" = true ]; then
    queue_stage 6 lm_stats stats "$tokens"
    queue_stage 7 lm lm "$id" --gpus_per_task "$ngpu"
    with_lm=$id
fi
statistics_job
queue_stage 10 stats stats "$tokens" --cpus_per_task "$stats_processes"
statistics=$id completed='' decoded=
for name in $test_sets; do
    incomplete "$name" || continue
    require "dump/$name/wav.scp" 3
    featuring "$name"
    queue stats "features.$name" "$expdir/log/features.$name.log" "" -- \
        "$python" "${features[@]}"
    completed+=,$id
done
for algorithm in $systems; do
    experiment "$algorithm"
    id=$statistics
    if [ "$algorithm" != gmm ] && chosen 11; then
        training
        queue train "train.$label" "$exp/train.log" "$statistics" \
            --tasks "$learners" --gpus_per_task "$ngpu" --restarts "$restarts" \
            -- "$python" "${train[@]}"
    fi
    trained=$id
    for each in $(ways "$algorithm"); do
        searching "$each"
        for name in $test_sets; do
            id=$trained
            if chosen 12; then
                after=$trained${with_lm:+,$with_lm}$completed
                queue_decoding "$name" "${after#,}"
            fi
            decoded+=${decoded:+,}$id
        done
    done
done
queue_stage 13 score other "$decoded"
trap end_jobs EXIT
log "to end them all: scancel ${queued[*]}"
