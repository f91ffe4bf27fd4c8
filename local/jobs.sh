# shellcheck shell=bash
# These functions start child processes that never outlive their script. Scripts source
# this file. Each child is a process group of its own (set -m), so Ctrl-C reaches only the
# script. The script then ends the groups, and so all processes that the children have
# started.

job_pids=()

# start COMMAND...: start a command in the background; its pid is in $!.
start() {
    set -m
    "$@" </dev/null &
    set +m
    job_pids+=("$!")
}

# run COMMAND...: run a command to its end, and return its status.
run() {
    start "$@"
    local status=0
    wait "$!" || status=$?
    job_pids=()
    return "$status"
}

# logged LOG WHAT COMMAND...: run a command with its stderr in the log; NAME.1.log and so
# on keep earlier logs. If the command fails or was stopped, say why, and end the script.
# The function needs log.sh.
logged() {
    local log=$1 what=$2 status=0 old=1
    mkdir -p "$(dirname "$log")"
    while [ -e "${log%.log}.$old.log" ]; do old=$((old + 1)); done
    [ ! -e "$log" ] || mv "$log" "${log%.log}.$old.log"
    run errors_into "$log" "${@:3}" || status=$?
    [ "$status" = 0 ] && return
    [ "$status" != 75 ] || stopped "$what"
    show_failure "$log" "$what" "$status"
    exit "$status"
}

# errors_into LOG COMMAND...: become a command with its stderr in the log. The script that
# waits for it keeps its own stderr, for the message after Ctrl-C.
errors_into() { exec "${@:2}" 2>"$1"; }

# end_jobs: end all children that still run, by force after thirty seconds.
end_jobs() {
    local pid tries
    for pid in "${job_pids[@]}"; do
        kill -TERM -- "-$pid" 2>/dev/null || true
    done
    for pid in "${job_pids[@]}"; do
        for ((tries = 0; tries < 300; tries++)); do
            kill -0 -- "-$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL -- "-$pid" 2>/dev/null || true
    done
    job_pids=()
}

# interrupted: end the script after Ctrl-C. The children get SIGTERM, by which a training
# saves its state; the first message explains theirs, which name that signal.
interrupted() {
    trap - INT
    echo "Ctrl-C: ending what runs, by SIGTERM" >&2
    end_jobs
    echo "stopped by Ctrl-C; start again to go on" >&2
    exit 130
}

# terminated: end the script after SIGTERM: as its children end, if one of them has saved
# its state (75).
terminated() {
    trap - TERM
    local pid status=143 pids=("${job_pids[@]}")
    end_jobs
    for pid in "${pids[@]}"; do
        wait "$pid" || [ $? != 75 ] || status=75
    done
    [ "$status" != 75 ] || echo "stopped by SIGTERM; start again to go on" >&2
    exit "$status"
}

trap end_jobs EXIT
trap interrupted INT
trap terminated TERM
trap 'exit 129' HUP
# Slurm signals all processes of a job that it is about to end, and this status requeues it.
trap 'exit 138' USR1
