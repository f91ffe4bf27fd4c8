"""The checks of what only recipes need, for `distopt doctor`."""

from pathlib import Path

from espnet_distopt.bin.machine_checks import (
    Check,
    Finding,
    missing,
    note,
    ok,
    package,
    program,
)
from espnet_distopt.errors import InputError
from espnet_distopt.recipes.scoring.scorers import find_hubscr, find_sclite


def check_sclite(folder: Path) -> Finding:
    """Check for NIST's sclite, without which jiwer counts word errors."""
    try:
        found = find_sclite()
    except InputError as error:
        return missing(str(error))
    if found is None:
        return note("no sclite (Debian: apt-get install sctk); jiwer counts instead")
    return ok(found.label)


def check_hubscr(folder: Path) -> Finding:
    """Check for NIST's hubscr, without which Hub5 has no official figures."""
    try:
        found = find_hubscr()
    except InputError as error:
        return missing(str(error))
    if found is None:
        return note("no hubscr (Debian: apt-get install sctk), for Hub5's official WER")
    return ok("hubscr")


SECTIONS: dict[str, list[Check]] = {
    "the recipes": [
        program("bash", "the recipes' scripts"),
        package("soxr", "resampling"),
        package("numba", "speech in Shorten's compression"),
        package("scipy", "synthetic telephone channels"),
        package("espeakng_loader", "synthetic speech", "espeakng-loader"),
        package("PIL", "text lines", "pillow"),
        package("sklearn", "handwritten digits", "scikit-learn"),
        package("matplotlib", "pictures"),
    ],
    "scoring": [check_sclite, check_hubscr, package("jiwer", "word errors")],
}
"""What a user may want to do -> what is checked for it, in the order of the output."""
