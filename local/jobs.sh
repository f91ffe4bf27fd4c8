# shellcheck shell=bash
# Children that never outlive their script. Source me.
# Each is started as a process group of its own (set -m): Ctrl-C reaches this script
# alone, which then ends the groups, with whatever they have started themselves.

job_pids=()

# start COMMAND...: start it in the background, its pid in $!.
start() {
    set -m
    "$@" </dev/null &
    set +m
    job_pids+=("$!")
}

# run COMMAND...: start it, wait for it, return its status.
run() {
    start "$@"
    local status=0
    wait "$!" || status=$?
    job_pids=()
    return "$status"
}

# logged LOG WHAT COMMAND...: run it with stderr in the log (earlier logs are kept as
# LOG.1, ...); if it fails or was stopped, say why and end. Needs log.sh.
logged() {
    local log=$1 what=$2 status=0 old=1
    mkdir -p "$(dirname "$log")"
    while [ -e "${log%.log}.$old.log" ]; do old=$((old + 1)); done
    [ ! -e "$log" ] || mv "$log" "${log%.log}.$old.log"
    run "${@:3}" 2>"$log" || status=$?
    [ "$status" = 0 ] && return
    # torchrun itself ends with 1, and names the first learner's status last.
    [[ $(grep '^  exitcode *: ' "$log" | tail -n 1) != *": 75 "* ]] || status=75
    [ "$status" != 75 ] || stopped "$what"
    show_failure "$log" "$what" "$status"
    exit "$status"
}

# end_jobs: end what is still running, by force after thirty seconds.
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

trap end_jobs EXIT
trap 'trap - INT; end_jobs; echo "stopped by Ctrl-C; start again to go on" >&2; exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
