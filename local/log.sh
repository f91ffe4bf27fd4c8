# shellcheck shell=bash
# These functions print the messages of the recipes' scripts, which source this file.

# log MESSAGE: print one line on stdout, with the time.
log() { echo "$(date '+%H:%M:%S') $*"; }

# die MESSAGE: print one line on stderr, and end the script.
die() {
    echo "error: $*" >&2
    exit 2
}

# stopped WHAT: end the script, because the program WHAT was told to stop and has saved
# its state.
stopped() {
    echo "$1 was stopped on request; the same command again goes on from there" >&2
    exit 75
}

# first_error LOG: print the line of a Python log that says what went wrong first. It is
# the last line of the first traceback (of any rank), or a command's own "error: ...".
first_error() {
    sed -E 's/^\[[a-z]*rank[0-9]+\]: ?//' "$1" | awk '
        /^error: / { print; exit }
        /^[^ ]*: error: / { print; exit }
        /^Traceback \(most recent call last\)/ { inside = 1; next }
        inside && /^[^ ]/ { print; exit }'
}

# show_failure LOG WHAT STATUS: print the first error and the path of the log on stderr.
show_failure() {
    local found
    found=$(first_error "$1")
    {
        if [ -z "$found" ]; then
            echo "last lines of $1:"
            tail -n 12 "$1" | sed 's/^/    /'
        fi
        echo "error: $2 failed (exit code $3)${found:+: ${found#error: }}"
        echo "full log: $1"
    } >&2
}
