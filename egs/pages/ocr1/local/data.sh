#!/usr/bin/env bash
# Stage 1 cuts the lines out of the pages of PAGES=/path, and makes data/{train,dev,test} of
# them. Arguments are passed on to prepare_lines, e.g. `--writer NAME`.
set -euo pipefail
# shellcheck source=../path.sh
. ./path.sh
# shellcheck source=../../../../local/log.sh
. "${MAIN_ROOT:?}/local/log.sh"

[ -n "${PAGES:-}" ] ||
    die "PAGES is not set: PAGES=/path must be a folder of images with PAGE XML"
"${python:?}" -m espnet_distopt prepare_lines --pages "$PAGES" --sets --out data "$@"
