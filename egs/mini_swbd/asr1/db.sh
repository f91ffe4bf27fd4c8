# shellcheck shell=bash
# These are the paths of the discs that local/data.sh makes. The recipe swbd has a file of
# this name, which says which corpora they stand for.
# shellcheck disable=SC2034  # swbd_data.sh reads the variables.
SWBD=corpus/swb1
SWBD_TEXT=
CONV_TAB=corpus/swb1/tables/conv.tab
EVAL2000_SPEECH=corpus/hub5e_00
EVAL2000_TEXT=corpus/2000_hub5_eng_eval_tr
FISHER_SPEECH=
FISHER_TEXT=
RT03=
