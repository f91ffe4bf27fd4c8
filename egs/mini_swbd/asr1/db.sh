# shellcheck shell=bash
# The discs that local/data.sh makes; see ../../swbd/asr1/db.sh for what they stand for.
# shellcheck disable=SC2034  # data.sh reads them
SWBD=corpus/swb1
SWBD_TEXT=
CONV_TAB=corpus/swb1/tables/conv.tab
EVAL2000_SPEECH=corpus/hub5e_00
EVAL2000_TEXT=corpus/2000_hub5_eng_eval_tr
FISHER_SPEECH=
FISHER_TEXT=
RT03=
