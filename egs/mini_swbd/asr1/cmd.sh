# shellcheck shell=bash
# The variable cmd_backend says where jobs run: `local` is this machine, and `slurm` asks
# for the resources of conf/slurm.yaml. The environment may set it:
#     cmd_backend=slurm ./run.sh
cmd_backend=${cmd_backend:-local}
