"""Finding SCTK's hubscr, and an installation that goes wrong."""

import os
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.scoring.scorers import Hubscr, find_hubscr, parse_alignments
from espnet_distopt.recipes.scoring.sides import read_sides

needs_sctk = pytest.mark.skipif(
    find_hubscr() is None and "CI" not in os.environ, reason="sctk is not installed"
)


def fake_sctk(directory: Path, body: str) -> Path:
    for name, text in (("sclite", "echo sclite Version: 9.9"), ("hubscr.pl", body)):
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    return directory


RAW = "| Sum | 4 9 | 6 3 0 0 3 3 |"
PRA = "File: {file}\\nChannel: a\\nScores: (#C #S #D #I) {scores}\\n"
ONE = PRA.format(file="sw_1", scores="1 0 0 0")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo Error: it broke >&2; exit 3", "exit code 3: Error: it broke"),
        ("exit 9", "exit code 9: it said nothing"),
        ("exit 0", "hubscr wrote no hyp.ctm.filt.raw: does perl run?"),
        (
            f"echo '{RAW}' >hyp.ctm.filt.raw; : >hyp.ctm.filt.pra",
            "scored 0 segments of",
        ),
        (
            f"echo '{RAW}' >hyp.ctm.filt.raw; printf '{ONE}' >hyp.ctm.filt.pra",
            "counted 3 errors in 9 words, its alignments have 0 in 1",
        ),
    ],
)
def test_hubscr_that_goes_wrong(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "stm").write_text("sw_1 A sw_1_A 0.00 1.00 hello\n")
    (tmp_path / "glm").touch()
    scorer = Hubscr(fake_sctk(tmp_path, body), "9.9")
    sides = read_sides(tmp_path / "stm")
    with pytest.raises(InputError, match=message):
        scorer.count(sides, tmp_path / "stm", tmp_path / "glm", "", tmp_path)
    assert not list(tmp_path.glob("hyp.ctm*"))


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (PRA.format(file="x", scores="1 0 0 0"), "unknown side x-a"),
        (PRA.format(file="sw_1", scores="1 0 0"), "scores in another form"),
    ],
)
def test_alignments_of_another_form(report: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_alignments(report.replace("\\n", "\n"), ["sw_1-A"])


@needs_sctk
def test_ways_to_name_sctk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_hubscr()
    assert found is not None
    built = tmp_path / "sctk"
    built.mkdir()
    (built / "bin").symlink_to(found.directory)
    for given in (found.directory, built, found.directory / "hubscr.pl"):
        assert find_hubscr(str(given)) == found
    monkeypatch.setenv("PATH", f"{found.directory}:/usr/bin:/bin")
    assert find_hubscr() == found
    blank = tmp_path / "a b"
    blank.symlink_to(found.directory)
    assert find_hubscr(str(blank)) == found


def test_a_program_that_only_shares_the_name_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sctk").write_text("#!/bin/sh\necho single cell toolkit\n")
    (tmp_path / "sctk").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_hubscr() is None
    directory = tmp_path / "a b"
    directory.mkdir()
    fake_sctk(directory, "exit 0")
    with pytest.raises(InputError, match="no directory with a blank"):
        find_hubscr(str(directory))
