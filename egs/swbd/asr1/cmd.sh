# shellcheck shell=bash
# shellcheck disable=SC2034  # asr.sh reads them
# Where jobs run: `local`, this machine, or `slurm`, with what conf/slurm.yaml asks for.
# The environment goes before: cmd_backend=slurm ./run.sh
cmd_backend=${cmd_backend:-local}
# What the jobs of --submit_all are told of this environment: where the discs are.
job_variables="SWBD SWBD_TEXT CONV_TAB EVAL2000_SPEECH EVAL2000_TEXT"
job_variables+=" FISHER_SPEECH FISHER_TEXT RT03"
