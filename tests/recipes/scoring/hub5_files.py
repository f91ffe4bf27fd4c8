"""Files for Hub5 scoring, and hubscr itself to compare with."""

import os
import subprocess
from pathlib import Path

import pytest

from espnet_distopt.recipes.scoring.scorers import find_hubscr

needs_sctk = pytest.mark.skipif(
    find_hubscr() is None and "CI" not in os.environ, reason="sctk is not installed"
)

HEADER = """\
;; CATEGORY "0" "" ""
;; LABEL "O" "Overall" "Overall"
;; CATEGORY "1" "Hub5" ""
;; LABEL "SWB" "Switchboard" "a"
;; LABEL "CHE" "CallHome" "b"
"""
GLM = """\
;; rules
* name "t.glm"
* desc "t"
* format = 'NIST1'
* max_nrules = '100'
* copy_no_hit = 'T'
* case_sensitive = 'F'
uh => %HESITATION / [ ] __ [ ]
we're => { we are / we're } / [ ] __ [ ]
"""
HALVES = ("--half", "swbd=^sw_", "--half", "callhome=^en_")


def run_hubscr(directory: Path, paths: dict[str, Path], drop: str) -> str:
    """Run hubscr itself without the lines that start so; return its raw counts."""
    directory.mkdir()
    for name, path in paths.items():
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not (drop and line.startswith(drop))]
        (directory / name).write_text("".join(kept))
    found = find_hubscr()
    assert found is not None
    program = [str(found.directory / "hubscr.pl"), "-p", str(found.directory)]
    # It validates its input, and refuses words that sclite can score, such as <unk>.
    options = ["-V", "-l", "english", "-h", "hub5", "-g", "glm", "-r", "stm", "ctm"]
    subprocess.run([*program, *options], cwd=directory, check=True, capture_output=True)
    return (directory / "ctm.filt.raw").read_text()
