#!/usr/bin/env bash
# Stage 1 makes data/ from the discs that db.sh names. Arguments are passed on to a script
# that the recipe shares with mini_swbd; it lists them with --help.
set -euo pipefail
exec ../../../local/swbd_data.sh "$@"
