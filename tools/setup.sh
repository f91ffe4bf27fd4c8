#!/usr/bin/env bash
# Make the repository's own environment, .venv, with the exact versions of
# requirements/. A second call returns at once unless a list has changed.
#
# Usage: tools/setup.sh [--dev | --users]
#
#   --dev     also what tests and linters need
#   --users   that, and in .venv/users what users of ESPnet have beside it
#
# If you have an environment with ESPnet already, you need none of this:
# activate it and run `pip install -e .`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=../local/log.sh
. local/log.sh
# pip takes for installed what is on it, and .venv would lack that in another shell.
unset PYTHONPATH

case ${1-} in
    '' | --dev | --users) ;;
    *) die "unknown argument '$1'; usage: tools/setup.sh [--dev | --users]" ;;
esac

# The list for Python "$1": ESPnet 202511 is the last for 3.11, 202611 needs 3.12.
list_for() {
    case $("$1" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null) in
        3.11) echo requirements/py311.txt ;;
        3.12 | 3.13) echo requirements/py312.txt ;;
        *) return 1 ;;
    esac
}

# The command that starts a Python of ours, tried as a pyenv shim may only pretend.
find_python() {
    local name
    for name in python3.11 python3.13 python3.12 python3 python; do
        if list_for "$name" >/dev/null; then
            echo "$name"
            return
        fi
    done
    die "no Python 3.11, 3.12 or 3.13 found: install one" \
        "(Debian 12: apt-get install python3.11-venv)"
}

python=.venv/bin/python
# venv would leave the link as it is.
[ -x "$python" ] || [ ! -L "$python" ] ||
    die "$python leads to no Python any more: move .venv away and run again"
[ -x "$python" ] || python=$(find_python)
list=$(list_for "$python") ||
    die ".venv is not Python 3.11, 3.12 or 3.13: move it away and run again"
lists=("$list")
[ -z "${1-}" ] || lists+=(requirements/dev.txt requirements/espnet3.txt)
[ "${1-}" != --users ] || lists+=(requirements/users.txt)

stamp=.venv/installed${1-}.cksum
sums=$(cksum setup.cfg pyproject.toml tools/setup.sh "${lists[@]}")
is_done() { [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$sums" ]; }
! is_done || exit 0

# Of two set-ups at once, one waits for the other, and then finds all done.
mkdir -p .venv
exec 9>>.venv/lock
if command -v flock >/dev/null && ! flock --nonblock 9; then
    log "set-up: waiting for another one"
    flock 9 || true # A file system without locks.
fi
! is_done || exit 0

# Twice quiet: nothing but errors.
pip() { .venv/bin/python -m pip "$@" -qq --disable-pip-version-check; }
imports() { .venv/bin/python -c "import $1" 2>/dev/null; }

make_venv() {
    if [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1; then
        return
    fi
    log "set-up: creating .venv with $("$python" --version)"
    "$python" -m venv .venv ||
        die "$python -m venv failed (Debian: apt-get install python3-venv)"
}

# torch comes first, so that the list finds it in place. PyPI's Linux build needs the
# CUDA libraries, which the list does not name: with a GPU it comes with them; without
# one, the CPU build does, from the configured indexes if they have it, else PyTorch's.
install_torch() {
    local wanted
    wanted=$(grep '^torch==' "$list")
    if [ "$(uname -s)" != Linux ]; then
        pip install --no-deps "$wanted"
    elif nvidia-smi -L >/dev/null 2>&1; then
        log "set-up: $wanted for CUDA"
        pip install -c "$list" "$wanted"
    else
        log "set-up: $wanted for CPU"
        pip install --no-deps "$wanted+cpu" 2>/dev/null ||
            pip install --no-deps "$wanted+cpu" \
                --index-url https://download.pytorch.org/whl/cpu ||
            die "no CPU build of $wanted: allow pip to reach download.pytorch.org" \
                "or put the wheel into a directory that PIP_FIND_LINKS names"
    fi
}

# PyPI's torchaudio has an extension linked to CUDA, without which it runs as well.
mend_torchaudio() {
    imports torchaudio && return
    log "set-up: torchaudio without its CUDA extension"
    rm -f .venv/lib/python3.*/site-packages/torchaudio/lib/*.so
    imports torchaudio ||
        die "torchaudio cannot be imported: see .venv/bin/python -c 'import torchaudio'"
}

# install_list FILE OPTIONS...: install the packages of a list, and no others: no resolver
# accepts espnet's pins beside torch's, so that the list is complete instead.
install_list() {
    log "set-up: $(grep -c '==' "$1") packages of $1, a minute or two"
    pip install --no-deps "${@:2}" -r "$1" ||
        die "the packages of $1 are not to be had: allow pip to reach an index" \
            "or put their wheels into a directory that PIP_FIND_LINKS names"
}

# Until all is done, no stamp says so: not even that of lists that come back with an
# earlier commit.
rm -f .venv/installed{,--dev,--users}.cksum
make_venv
install_torch
install_list "$list"
if [ -n "${1-}" ]; then
    install_list requirements/dev.txt
    rm -rf .venv/espnet3 # pip does not clear it of other versions.
    install_list requirements/espnet3.txt --ignore-requires-python --target .venv/espnet3
fi
if [ "${1-}" = --users ]; then
    rm -rf .venv/users
    install_list requirements/users.txt --target .venv/users
fi
mend_torchaudio
pip install --no-deps --no-build-isolation -e .
# The stamps without --users and --dev are the same list less what these add.
head -n 4 <<<"$sums" >.venv/installed.cksum
[ -z "${1-}" ] || head -n 6 <<<"$sums" >.venv/installed--dev.cksum
echo "$sums" >"$stamp"
log "set-up: done, .venv is ready"
