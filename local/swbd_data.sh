#!/usr/bin/env bash
# This script makes data/ from the discs that a recipe's db.sh names, for stage 1 of swbd
# and mini_swbd. It runs in the recipe's directory, and reads db.sh and path.sh there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../egs/mini_swbd/asr1/path.sh
. ./path.sh
# shellcheck source=log.sh
. "$here/log.sh"
# shellcheck source=../egs/swbd/asr1/db.sh
. ./db.sh

# options
swbd=$SWBD                        # LDC97S62
swbd_text=$SWBD_TEXT              # MS98 transcripts, if they are not below --swbd
conv_tab=$CONV_TAB                # conv.tab of LDC97S62: who speaks (optional)
dev_speakers=keep                 # exclude: nobody of train_dev is in training, 240-250 h
eval2000_speech=$EVAL2000_SPEECH  # LDC2002S09
eval2000_text=$EVAL2000_TEXT      # LDC2002T43
fisher_speech=$FISHER_SPEECH      # LDC2004S13 and LDC2005S13 (optional)
fisher_text=$FISHER_TEXT          # LDC2004T19 and LDC2005T19 (optional)
rt03=$RT03                        # LDC2007S10 (optional)
dev_segments=                     # utterances of train_dev (4000)
max_lost=1                        # percent of the recordings and lines that may be bad
# end of options
# shellcheck source=parse_options.sh
. "$here/parse_options.sh"

# required OPTION NUMBER: end the script if the option does not name a directory.
required() {
    [ -n "${!1}" ] || die "${1^^} is empty: write into db.sh where $2 lies (or pass --$1)"
    [ -d "${!1}" ] || die "${1^^}=${!1}: no such directory, expected $2"
}

required swbd "LDC97S62 (Switchboard-1 Release 2)"
required eval2000_speech "LDC2002S09 (2000 HUB5 English Evaluation Speech)"
required eval2000_text "LDC2002T43 (2000 HUB5 English Evaluation Transcripts)"
options=(--swb1 "$swbd" --eval2000_speech "$eval2000_speech")
options+=(--eval2000_text "$eval2000_text" --out data)
options+=(--dev_speakers "$dev_speakers" --max_lost "$max_lost")
[ -z "$swbd_text" ] || options+=(--swb1_text "$swbd_text")
[ -z "$conv_tab" ] || options+=(--conv_tab "$conv_tab")
[ -z "$rt03" ] || options+=(--rt03 "$rt03")
[ -z "$dev_segments" ] || options+=(--dev_segments "$dev_segments")
# shellcheck disable=SC2206  # The variables are lists of paths.
[ -z "$fisher_speech" ] || options+=(--fisher_speech $fisher_speech)
# shellcheck disable=SC2206
[ -z "$fisher_text" ] || options+=(--fisher_text $fisher_text)
"${python:?}" -m espnet_distopt prepare_swbd "${options[@]}"

# The dictionary of the transcripts gives the hybrid system its lexicon, which has the
# words of all sets that it may train on.
texts=(--text data/train_nodup/text --text data/train_dev/text)
[ -z "$fisher_text" ] || texts+=(--text data/train_fisher/text)
place=${swbd_text:-$swbd} dictionary=
[ ! -d "$place" ] || dictionary=$(find -L "$place" -iname sw-ms98-dict.text -print -quit)
[ -z "$dictionary" ] || "$python" -m espnet_distopt make_lexicon "${texts[@]}" \
    --dictionary "$dictionary" --max_lost "$max_lost" --out data/lexicon.txt
