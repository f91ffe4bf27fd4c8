# shellcheck shell=bash
# Where jobs run: `local`, this machine, or `slurm`, with what conf/slurm.yaml asks for.
# The environment goes before: cmd_backend=slurm ./run.sh
cmd_backend=${cmd_backend:-local}
