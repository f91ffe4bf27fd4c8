"""Files for Hub5 scoring, and hubscr itself to compare with."""

import os
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
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


WORDS = [
    *("yes", "no", "well", "i", "know", "we're", "okay", "a", "so-called", "uh-huh"),
    *("I.", "B.", "dog's"),
]
SPOKEN = [*WORDS, "(%HESITATION)", "(th-)", "{ there / @ }", "{ a / the }"]
# What is right, what a filter would drop, and what is markup in a reference.
RECOGNIZED = [
    *WORDS,
    *("we", "are", "ok", "UH", "um", "%HESITATION", "%BCACK", "th-", "kn-", "hm"),
    *("[noise]", "<unk>", "<s>", "at&t", "x@y", "caf\u00e9", "3rd", "a_b"),
]


def lines_of_side(
    rng: random.Random, file: str, channel: str, recognized: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of a CTM: words at any time, also between and after segments."""
    for _ in range(rng.randint(0, 40)):
        start, duration = rng.uniform(0, 40), rng.choice((0, 0.01, 0.5, 3))
        confidence = rng.choice(("", " 0.7", " 1", " 0"))
        word = rng.choice(recognized)
        place = f"{file} {channel} {start:.2f} {duration:.2f}"
        yield f"{place} {word}{confidence}\n"
    # Alternatives are of words that follow one another.
    if rng.random() < 0.3:
        alternatives = "".join(
            f"{file} {channel} * * {mark}\n"
            + "".join(f"{file} {channel} 50.00 0.50 {word}\n" for word in words)
            for mark, words in (
                ("<ALT_BEGIN>", rng.sample(WORDS, 1)),
                ("<ALT>", rng.sample(WORDS, 2)),
                ("<ALT_END>", []),
            )
        )
        yield alternatives


def random_task(
    directory: Path,
    seed: int,
    markup: bool = True,
    recognized: Sequence[str] = RECOGNIZED,
) -> dict[str, Path]:
    """Write a reference of eight sides, and a CTM that has little to do with it.

    Without `markup`, the CTM has no alternatives and no word that needs hubscr itself.
    Its words are those that are `recognized`.
    """
    rng = random.Random(seed)
    stm, ctm = [], []
    # hubscr fails where one file has both capitals and small letters.
    stm_sides, ctm_sides = rng.choice(("AB", "ab")), rng.choice(("AB", "ab"))
    for number in range(4):
        file, label = (
            (f"sw_{4000 + number}", "SWB")
            if number % 2
            else (f"en_{4000 + number}", "CHE")
        )
        for name, channel in zip(stm_sides, ctm_sides, strict=True):
            start = rng.uniform(0, 2)
            for _ in range(rng.randint(1, 8)):
                end = start + rng.uniform(0.5, 5)
                text = " ".join(rng.choices(SPOKEN, k=rng.randint(1, 9)))
                if rng.random() < 0.1:
                    text = "IGNORE_TIME_SEGMENT_IN_SCORING"
                stm.append(
                    f"{file} {name} {file}_{channel} {start:.2f} {end:.2f} "
                    f"<O,{label}> {text}\n"
                )
                start = end + rng.choice((0, 0, 1.5))
            lines = lines_of_side(rng, file, channel, recognized)
            ctm += (line for line in lines if markup or not re.search("[*@]", line))
    # Each half needs a word to score, or hubscr would not score it alone.
    assert all(any(half in line for line in ctm) for half in ("sw_", "en_"))
    if not any("* *" in line for line in ctm):
        rng.shuffle(ctm)
    paths = {name: directory / name for name in ("stm", "glm", "ctm")}
    paths["stm"].write_text(HEADER + "".join(stm), encoding="utf-8")
    paths["glm"].write_text(GLM)
    paths["ctm"].write_text(";; a system\n" + "".join(ctm), encoding="utf-8")
    return paths


def options_of(paths: dict[str, Path]) -> list[str]:
    return [text for name, path in paths.items() for text in (f"--{name}", str(path))]
