# shellcheck shell=bash
# shellcheck disable=SC2034  # asr.sh reads the variables.
# The variable cmd_backend says where jobs run: `local` is this machine, and `slurm` asks
# for the resources of conf/slurm.yaml. The environment may set it:
#     cmd_backend=slurm ./run.sh
cmd_backend=${cmd_backend:-local}
# The jobs of --submit_all get these variables of the environment.
job_variables="PAGES"
