# shellcheck shell=bash
# shellcheck disable=SC2154  # The variable dry_run is that of backend.sh.
# These functions tell of which texts a stage has made a file that experiments share, and of
# which model a decoding is. The scripts asr.sh and decode.sh source this file.

# made_of FILE TEXTS...: note beside the file that it was made of these texts.
made_of() { [ "$dry_run" = true ] || text_sum "${@:2}" >"$1.made_of"; }

# same_text FILE TEXTS...: succeed unless a note says that the file was made of others.
same_text() {
    local now
    now=$(text_sum "${@:2}")
    [ "$dry_run" = true ] || [ -z "$now" ] || [ ! -s "$1.made_of" ] ||
        [ "$(<"$1.made_of")" = "$now" ]
}

# require_same_text STAGE FILE TEXTS...: end the script if the stage STAGE has made the file
# of other texts, or of these before they changed.
require_same_text() {
    same_text "${@:2}" ||
        die "$2 was not made of ${*:3} as it is now: run from stage $1 (--stage $1)"
}

# text_sum TEXTS...: print the checksum of texts, or nothing if one of them is missing.
text_sum() {
    local text
    for text; do [ -s "$text" ] || return 0; done
    cat "$@" | cksum
}
