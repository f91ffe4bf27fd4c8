"""With --ctm_as_is the figures are hubscr's own, whatever is in the CTM."""

import random
import re
from pathlib import Path

import pytest

from espnet_distopt.recipes.commands.scoring import score_hub5_command as main
from espnet_distopt.recipes.scoring.result import AS_IS, FILTERED, Result
from espnet_distopt.recipes.scoring.scorers import parse_raw_summary
from tests.recipes.scoring.hub5_files import (
    HALVES,
    needs_sctk,
    options_of,
    random_task,
    run_hubscr,
)
from tests.refusal import error_of


def score(directory: Path, paths: dict[str, Path], *options: str) -> Result:
    main([*options_of(paths), "--out", str(directory / "out"), *HALVES, *options])
    return Result.read(directory / "out" / "result.json")


def check_equals_hubscr(directory: Path, seed: int) -> None:
    paths = random_task(directory, seed)
    result = score(directory, paths, "--ctm_as_is")
    for half, drop in (("swbd", "en_"), ("callhome", "sw_"), ("all", "")):
        raw = run_hubscr(directory / half, paths, drop)
        assert parse_raw_summary(raw) == result.halves[half], (seed, half)
    assert result.halves["all"].errors > 20
    assert (directory / "out" / "hyp.ctm").read_text().upper() == (
        paths["ctm"].read_text().upper()
    )


@needs_sctk
@pytest.mark.parametrize("seed", range(3))
def test_all_halves_equal_hubscrs(tmp_path: Path, seed: int) -> None:
    check_equals_hubscr(tmp_path, seed)


@pytest.mark.thorough
@needs_sctk
def test_all_halves_equal_hubscrs_for_many_ctms(tmp_path: Path) -> None:
    for seed in range(3, 15):
        (tmp_path / str(seed)).mkdir()
        check_equals_hubscr(tmp_path / str(seed), seed)


@needs_sctk
def test_small_and_capital_letters_may_name_one_channel(tmp_path: Path) -> None:
    paths = random_task(tmp_path, 1, markup=False)
    expected = score(tmp_path, paths, "--ctm_as_is")
    rng = random.Random(1)
    for name in ("stm", "ctm"):
        mixed = re.sub(
            r"(?m)^(\w+) ([ABab]) ",
            lambda line: f"{line[1]} {rng.choice((line[2].lower(), line[2].upper()))} ",
            paths[name].read_text(),
        )
        assert " a " in mixed and " B " in mixed
        paths[name].write_text(mixed)
    assert score(tmp_path, paths, "--ctm_as_is") == expected
    assert score(tmp_path, paths).halves["all"].errors > 20


@needs_sctk
def test_the_result_says_what_was_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = random_task(tmp_path, 1, markup=False)
    filtered = score(tmp_path, paths)
    assert filtered.ctm == FILTERED
    assert f"the CTM was scored {FILTERED}\n" in capsys.readouterr().out
    whole = score(tmp_path, paths, "--ctm_as_is")
    assert whole.ctm == AS_IS
    assert f"the CTM was scored {AS_IS}\n" in capsys.readouterr().out
    assert whole.halves != filtered.halves
    assert (filtered.kind, whole.kind) == ("hubscr", f"hubscr, CTM {AS_IS}")
    assert whole.cross_check is None


@needs_sctk
@pytest.mark.parametrize("text", ["", ";; a system\n"])
def test_a_system_that_recognizes_nothing_has_deletions(
    tmp_path: Path, text: str
) -> None:
    paths = random_task(tmp_path, 1)
    paths["ctm"].write_text(text)
    counts = score(tmp_path, paths, "--ctm_as_is").halves["all"]
    assert parse_raw_summary(run_hubscr(tmp_path / "all", paths, "")) == counts
    assert (counts.substitutions, counts.insertions) == (0, 0)
    assert counts.deletions > 20


@needs_sctk
def test_what_hubscr_would_fail_at_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = random_task(tmp_path, 1)
    with paths["ctm"].open("a") as ctm:
        ctm.write("sw_4009 a 1 1 so\n")
    options = [*options_of(paths), "--out", str(tmp_path / "out"), "--ctm_as_is"]
    assert "has words on sw_4009-A, which" in error_of(main, options, capsys)
    with pytest.raises(SystemExit):
        main([*options, "--scorer", "jiwer"])
    assert "--ctm_as_is is for hubscr" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
