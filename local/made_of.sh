# shellcheck shell=bash
# shellcheck disable=SC2154  # The variables are those of asr.sh.
# These functions tell of which training set a stage has made a file that experiments share.
# asr.sh sources this file.

# made_of FILE: note beside the file that it was made of the training set as it is now.
made_of() { [ "$dry_run" = true ] || text_sum >"$1.made_of"; }

# same_text FILE: succeed unless a note says that the file was made of other texts.
same_text() {
    local now
    now=$(text_sum)
    [ "$dry_run" = true ] || [ -z "$now" ] || [ ! -s "$1.made_of" ] ||
        [ "$(<"$1.made_of")" = "$now" ]
}

# require_same_text FILE STAGE: end the script if the stage STAGE has made the file of
# another training set, or of this one before its texts changed.
require_same_text() {
    same_text "$1" ||
        die "$1 was not made of dump/$train_set/text as it is now:" \
            "run from stage $2 (--stage $2)"
}

# text_sum: print the checksum of the training set's texts, or nothing without these.
text_sum() { [ ! -s "dump/$train_set/text" ] || cksum <"dump/$train_set/text"; }
