#!/usr/bin/env bash
# Download the wheels with which `make gpu WHEELS=FOLDER` runs on a machine that has no
# network but a Python with torch: those of requirements/, for that Python and torch.
#
# Usage: tools/gpu_wheels.sh FOLDER PYTHON TORCH [THERE]
#     tools/gpu_wheels.sh wheels 3.12 2.11 there.txt
#
# THERE is a file with the packages that the machine has, as `pip freeze` prints them; they
# are not downloaded. Versions of the machine stay as they are in any case.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../local/log.sh
. "$root/local/log.sh"

[ $# -ge 3 ] || die "usage: tools/gpu_wheels.sh FOLDER PYTHON TORCH [THERE]"
folder=$1 python=$2 torch=$3 there=${4:-/dev/null}
case $python in
    3.11) list=$root/requirements/py311.txt ;;
    3.12 | 3.13) list=$root/requirements/py312.txt ;;
    *) die "PYTHON is $python: expected 3.11, 3.12 or 3.13" ;;
esac
[ -e "$there" ] || die "$there: no such file"

# names: print the names of packages of lines such as `PyYAML==6.0`, in one spelling.
names() { sed -E 's/[ =<>@;[].*//' | tr '[:upper:]_.' '[:lower:]--'; }

target=(--only-binary=:all: --python-version "$python" --implementation cp)
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
    target+=(--platform "${tag}_$(uname -m)")
done
pip() { python3 -m pip -q --disable-pip-version-check "$@"; }

# fetch REQUIREMENT: download a wheel, or build one of a package that has none.
fetch() {
    pip download --no-deps --dest "$folder" "${target[@]}" "$1" 2>/dev/null && return
    log "$1: has no wheel, building one"
    pip wheel --no-deps --wheel-dir "$folder/built" "$1"
    for wheel in "$folder"/built/*.whl; do
        [[ $wheel == *-none-any.whl ]] || die "$1: its wheel is of this machine's Python"
        mv "$wheel" "$folder"
    done
}

mkdir -p "$folder"
tests='^(pytest|pytest-timeout|pytest-xdist|execnet|iniconfig|pluggy|Pygments|hypothesis|'
tests+='sortedcontainers|lightning|lightning-utilities|torchmetrics)=='
mapfile -t wanted < <(
    grep -E '^[A-Za-z]' "$list" | grep -vE '^torch(audio)?=='
    grep -E "$tests" "$root/requirements/dev.txt"
    # Both have the same numbers up to 2.11, after which torchaudio has no other one.
    if [ "${torch#*.}" -gt 11 ]; then torch=2.11; fi
    echo "torchaudio==$torch.*"
)
known=$(names <"$there")
for each in "${wanted[@]}"; do
    grep -qxF "$(names <<<"$each")" <<<"$known" || fetch "$each"
done
rm -rf "$folder/built"
log "$(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sh "$folder" | cut -f 1), in $folder"
