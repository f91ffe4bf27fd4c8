# shellcheck shell=bash
# Where a recipe's heavy work runs, as cmd_backend says: in this machine's processes or
# in jobs of Slurm (espnet_distopt.bin.slurm). Source me after log.sh, jobs.sh and cmd.sh.

cmd_backend=${cmd_backend:-local}
slurm_config=${slurm_config:-conf/slurm.yaml}
dry_run=${dry_run:-false}
# For the scripts that asr.sh starts.
export cmd_backend slurm_config dry_run
# What the names of all jobs begin with: fsdd for egs/fsdd/asr1.
recipe=$(basename "$(dirname "$PWD")")

if [ "$dry_run" = true ]; then
    log() { echo "# $*"; }
fi

# check_backend: end if there is none such, or if it cannot be used from here.
check_backend() {
    case $cmd_backend in
        local)
            [ "$dry_run" = false ] || die "--dry_run shows jobs: it needs cmd_backend=slurm"
            return
            ;;
        slurm) ;;
        *) die "cmd_backend=$cmd_backend is not known, expected local or slurm" ;;
    esac
    [ -f "$slurm_config" ] || die "$slurm_config: no such file (in $PWD)"
    [ "$dry_run" = false ] || return 0
    command -v sbatch >/dev/null ||
        die "cmd_backend=slurm: sbatch is not on PATH; cmd_backend=local needs no Slurm"
    [ -z "${SLURM_JOB_ID:-}" ] ||
        die "cmd_backend=slurm inside job $SLURM_JOB_ID: submit from outside of it," \
            "or use cmd_backend=local"
}

# slurm STAGE NAME LOG [OPTIONS...] -- COMMAND...: as a job; returns its status.
slurm() {
    local about=(--stage "$1" --name "$(job_name "$2")" --log "$3")
    if [ "$dry_run" = true ]; then
        about+=(--dry_run)
        echo "### ${3%.log}.sbatch"
    fi
    run "${python:?}" -m espnet_distopt.bin.slurm "${about[@]}" --settings "$slurm_config" \
        "${@:4}"
}

# job_name NAME: in a form that Slurm takes.
job_name() {
    local name=$recipe.$1
    echo "${name//[^a-zA-Z0-9_.+-]/_}"
}

# job STAGE NAME LOG WHAT [OPTIONS...] -- COMMAND...: one process. OPTIONS are of
# bin.slurm. If it fails or was stopped, that was said, and this script ends.
job() {
    local stage=$1 name=$2 log=$3 what=$4 options=() status=0
    shift 4
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    if [ "$cmd_backend" = local ]; then
        logged "$log" "$what" "$@"
        return
    fi
    slurm "$stage" "$name" "$log" "${options[@]}" -- "$@" || status=$?
    [ "$status" != 75 ] || stopped "$what"
    [ "$status" = 0 ] || exit "$status"
}

# learners NUMBER NGPU NAME LOG WHAT ARGUMENTS...: a training by so many learners, with
# so many GPUs each; NUMBER 0: by one process that has nobody to talk to. ARGUMENTS are
# those of python.
learners() {
    local number=$1 ngpu=$2 launch=() options=()
    if [ "$cmd_backend" = slurm ]; then
        options=(--tasks "$((number > 0 ? number : 1))" --gpus_per_task "$ngpu")
    elif [ "$number" -gt 0 ]; then
        launch=(-m torch.distributed.run --standalone --nproc_per_node "$number")
    fi
    job train "${@:3:3}" "${options[@]}" -- "$python" "${launch[@]}" "${@:6}"
}

# array NUMBER STAGE NAME LOG WHAT COMMAND...: as many processes. The word JOB in LOG
# and at the end of an argument is the process's number, from 1. Calls `show_progress`
# every ten seconds.
array() {
    local number=$1 stage=$2 name=$3 log=$4 what=$5 status=0 i pids shown=$SECONDS
    shift 5
    if [ "$cmd_backend" = slurm ]; then
        slurm "$stage" "$name" "$log" --array "$number" -- "$@" || exit $?
        return
    fi
    for ((i = 1; i <= number; i++)); do
        start "${@/%JOB/$i}" >"${log/JOB/$i}" 2>&1
    done
    pids=("${job_pids[@]}")
    for ((i = 1; i <= number; i++)); do
        while kill -0 "${pids[i - 1]}" 2>/dev/null; do
            sleep 0.2
            if ((SECONDS - shown >= 10)); then
                show_progress
                shown=$SECONDS
            fi
        done
        wait "${pids[i - 1]}" || status=$?
        if [ "$status" != 0 ]; then
            show_failure "${log/JOB/$i}" "$what" "$status"
            exit "$status"
        fi
    done
    job_pids=()
}
