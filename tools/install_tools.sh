#!/usr/bin/env bash
# This script installs what the tests need beside Python: NIST's scorer, ffmpeg (an
# independent decoder), Slurm, and a browser for the pages. It takes Debian's packages,
# and only where apt-get works without a password.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=../local/log.sh
. local/log.sh

# A Python package named sctk installs other scripts, so ask for the version of sclite.
has_sctk() {
    local said
    said=$( (sclite || sctk sclite) 2>&1 </dev/null) || true
    [[ $said == *"sclite Version"* ]]
}
has_ffmpeg() { command -v ffmpeg >/dev/null; }
has_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null; }
has_slurm() {
    local PATH=$PATH:/usr/sbin:/sbin
    command -v sbatch >/dev/null && command -v slurmd >/dev/null &&
        command -v slurmctld >/dev/null && command -v munged >/dev/null
}

# install PACKAGES...: install packages; fail if there is no apt-get or if it needs a
# password.
install() {
    local as_root=()
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    # A question would wait for ever for an answer, because nobody sees it.
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    local get=("${apt[@]}" install -y --no-install-recommends)
    {
        "${get[@]}" "$@" || { "${apt[@]}" update && "${get[@]}" "$@"; }
    } </dev/null >/dev/null 2>&1
}

# need TOOL WITHOUT PACKAGES...: install a tool if it is missing. If that fails, log the
# text WITHOUT, which says what does not work without the tool.
need() {
    ! "has_$1" || return 0
    log "$1: installing ${*:3}"
    install "${@:3}" || log "$1: apt-get could not"
    "has_$1" || log "$1: missing; $2 (Debian: apt-get install ${*:3})"
}

need sctk "its tests are skipped and recipes score with jiwer" sctk
need ffmpeg "its tests are skipped" ffmpeg
need chromium "its tests are skipped" chromium
need slurm "its tests are skipped" slurm-wlm munge
