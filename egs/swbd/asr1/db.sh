# shellcheck shell=bash
# These are the paths of the discs, copied to disk; a directory may hold several discs. An
# empty path must be filled in here or come from the environment:
#     SWBD=/corpora/LDC97S62 ./run.sh
SWBD=${SWBD:-}                        # LDC97S62   Switchboard-1 Release 2
SWBD_TEXT=${SWBD_TEXT:-}              # its MS98 transcripts, where they lie elsewhere
CONV_TAB=${CONV_TAB:-}                # its conv.tab, for --dev_speakers exclude
EVAL2000_SPEECH=${EVAL2000_SPEECH:-}  # LDC2002S09 2000 HUB5 English Evaluation Speech
EVAL2000_TEXT=${EVAL2000_TEXT:-}      # LDC2002T43 its transcripts
# The discs below are optional.
FISHER_SPEECH=${FISHER_SPEECH:-}      # LDC2004S13 LDC2005S13: two paths without blanks
FISHER_TEXT=${FISHER_TEXT:-}          # LDC2004T19 LDC2005T19: two paths without blanks
RT03=${RT03:-}                        # LDC2007S10 2003 NIST Rich Transcription
