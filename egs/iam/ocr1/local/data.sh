#!/usr/bin/env bash
# Stage 1 makes data/{train,dev,test} from IAM's archives, which are unpacked in IAM=/path.
# Arguments are passed on to prepare_iam; they may be lists of ids for another split than
# IAM's own.
set -euo pipefail
# shellcheck source=../path.sh
. ./path.sh
# shellcheck source=../../../../local/log.sh
. "${MAIN_ROOT:?}/local/log.sh"

[ -n "${IAM:-}" ] ||
    die "IAM is not set: IAM=/path must have lines.tgz and ascii.tgz unpacked (lines/," \
        "ascii/), from https://fki.tic.heia-fr.ch/databases/iam-handwriting-database"
[ -d "$IAM" ] || die "IAM=$IAM: no such directory"
"${python:?}" -m espnet_distopt prepare_iam --iam "$IAM" --out data "$@"
