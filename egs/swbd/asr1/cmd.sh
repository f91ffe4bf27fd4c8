# shellcheck shell=bash
# Where jobs run. Only `local`, this machine, so far.
cmd_backend=${cmd_backend:-local}
if [ "$cmd_backend" != local ]; then
    echo "error: cmd.sh: cmd_backend=$cmd_backend is not known, expected local" >&2
    exit 2
fi
