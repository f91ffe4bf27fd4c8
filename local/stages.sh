# shellcheck shell=bash
# shellcheck disable=SC2154  # The variables are those of asr.sh.
# These functions say which stages run and what they need, and run commands for them on this
# machine. The script asr.sh sources this file.

# chosen NUMBER: succeed if the stage is to run.
chosen() {
    [ "$stage" -le "$1" ] && [ "$1" -le "$stop_stage" ]
}

stages=() # those that there are

# at_stage NUMBER NAME: succeed if the stage is to run, and log that it runs.
at_stage() {
    stages+=("$1")
    chosen "$1" && log "stage $1: $2"
}

# require FILE STAGE: end the script if the earlier stage STAGE has not made the file.
require() {
    [ "$dry_run" = true ] || [ -s "$1" ] ||
        die "$1 is missing: run from stage $2 (--stage $2)"
}

# locally COMMAND...: run a command on this machine, even if jobs run elsewhere.
locally() {
    [ "$dry_run" = true ] || run "$@"
}

# tool NAME ARGUMENTS...: run a command of the recipes on this machine.
tool() {
    locally "$python" -m espnet_distopt "$1" "${@:2}"
}
