# shellcheck shell=bash
# shellcheck disable=SC2034  # asr.sh reads the variables.
# The variable cmd_backend says where jobs run: `local` is this machine, and `slurm` asks
# for the resources of conf/slurm.yaml. The environment may set it:
#     cmd_backend=slurm ./run.sh
cmd_backend=${cmd_backend:-local}
# The jobs of --submit_all get these variables of the environment, the paths of the discs.
job_variables="SWBD SWBD_TEXT CONV_TAB EVAL2000_SPEECH EVAL2000_TEXT"
job_variables+=" FISHER_SPEECH FISHER_TEXT RT03"
