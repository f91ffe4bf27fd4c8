# shellcheck shell=bash
# These functions run a recipe's heavy work where cmd_backend says: in processes of this
# machine, or in jobs of Slurm (espnet_distopt.bin.slurm). Scripts source this file after
# log.sh, jobs.sh and cmd.sh.

# A stage that runs in a job works there, whatever cmd.sh says (submit_all.sh).
cmd_backend=${queued_backend:-${cmd_backend:-local}}
slurm_config=${slurm_config:-conf/slurm.yaml}
dry_run=${dry_run:-false}
# The scripts that asr.sh starts read these variables.
export cmd_backend slurm_config dry_run
# The names of all jobs begin with the recipe's name, which is fsdd for egs/fsdd/asr1.
recipe=$(basename "$(dirname "$PWD")")

if [ "$dry_run" = true ]; then
    log() { echo "# $*"; }
fi

# check_backend: end the script if the backend is unknown or cannot be used from here.
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

# slurm STAGE NAME LOG [OPTIONS...] -- COMMAND...: run a command as a job of Slurm, and
# return its status. All jobs but trainings are one process, whatever the settings say,
# because several would write the same files.
slurm() {
    local about=(--stage "$1" --name "$(job_name "$2")" --log "$3")
    [ "$1" = train ] || about+=(--tasks 1)
    if [ "$dry_run" = true ]; then
        about+=(--dry_run)
        echo "### ${3%.log}.sbatch"
    fi
    run "${python:?}" -m espnet_distopt.bin.slurm "${about[@]}" --settings "$slurm_config" \
        "${@:4}"
}

# job_name NAME: print the full name of a job, in a form that Slurm accepts.
job_name() {
    local name=$recipe.$1
    echo "${name//[^a-zA-Z0-9_.+-]/_}"
}

# job STAGE NAME LOG WHAT [OPTIONS...] -- COMMAND...: run a command as one process.
# OPTIONS are those of bin.slurm. If the command fails or was stopped, a message says so,
# and this script ends.
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

# learners NUMBER NGPU NAME LOG WHAT ARGUMENTS...: run a training by NUMBER learners, with
# NGPU GPUs each. With NUMBER 0 one process trains alone, without a launcher. A learner
# that dies is started again at most $restarts times. ARGUMENTS are those of python.
learners() {
    local number=$1 ngpu=$2 launch=() options=()
    if [ "$cmd_backend" = slurm ]; then
        options=(--tasks "$((number > 0 ? number : 1))" --gpus_per_task "$ngpu"
            --restarts "${restarts:?}")
    elif [ "$number" -gt 0 ]; then
        launch=(-m espnet_distopt.bin.launch --nproc "$number" --restarts "${restarts:?}")
        [ -z "${slow:-}" ] || launch+=(--slow "$slow")
        [ "${share_gpu:-false}" = false ] || launch+=(--share-gpu)
    fi
    job train "${@:3:3}" "${options[@]}" -- "$python" "${launch[@]}" "${@:6}"
}

# array NUMBER STAGE NAME LOG WHAT COMMAND...: run a command as NUMBER processes. The word
# JOB in LOG and at the end of an argument stands for the process's number, from 1. The
# function calls `show_progress` every ten seconds.
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
