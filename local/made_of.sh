# shellcheck shell=bash
# shellcheck disable=SC2154  # The variables are those of asr.sh, or of backend.sh.
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

# check_formatted: end the script if the stages from 5 would use a set that stage 3 has
# formatted with other options, or of other data. It formats one set after the other, so
# that one which was ended may have left some of an earlier run.
check_formatted() {
    local name sets=()
    [ "$stage" -gt 3 ] || return 0
    if [ "$stage" -le 11 ] && [ "$stop_stage" -ge 5 ]; then
        sets=("$train_set" "$valid_set")
    fi
    # shellcheck disable=SC2206  # The variable test_sets is a list of names.
    [ "$stop_stage" -lt 12 ] || sets+=($test_sets)
    for name in "${sets[@]}"; do
        require_same_text 3 "dump/$name/text" "data/$name/text"
        same_formatting "$name"
    done
}
