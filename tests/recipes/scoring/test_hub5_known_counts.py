"""Conversation sides whose counts are known, scored by the command."""

import json
import os
from pathlib import Path

import pytest

from espnet_distopt.recipes.commands import scoring
from espnet_distopt.recipes.scoring.result import Result
from espnet_distopt.recipes.scoring.scorers import find_hubscr
from tests.recipes.scoring.known_counts import CASES, KnownCase, side, write_task

needs_sctk = pytest.mark.skipif(
    find_hubscr() is None and "CI" not in os.environ, reason="sctk is not installed"
)
IDS = [case.name for case in CASES]
SCORERS = [pytest.param("hubscr", marks=needs_sctk), "jiwer"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """What each scorer that is installed makes of the cases."""
    directory = tmp_path_factory.mktemp("task")
    files = write_task(directory)
    found = {}
    for name in ("hubscr", "jiwer") if find_hubscr() else ("jiwer",):
        out = directory / name
        scoring.score_hub5_command([*files, "--out", str(out), "--scorer", name])
        found[name] = Result.read(out / "result.json")
    return found


def test_enough_cases() -> None:
    assert len(CASES) >= 20
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize(
    ("number", "case"), enumerate(CASES), ids=lambda x: str(x)[:40]
)
def test_known_case(
    results: dict[str, Result], scorer: str, number: int, case: KnownCase
) -> None:
    counts = results[scorer].speakers["-".join(side(number))]
    expected = (case.jiwer if scorer == "jiwer" else None) or case.hubscr
    four = counts.correct, counts.substitutions, counts.deletions, counts.insertions
    assert "".join(map(str, four)) == expected
    assert counts.words == sum(four[:3])


@needs_sctk
def test_where_plain_scoring_differs(
    results: dict[str, Result], tmp_path: Path
) -> None:
    hub5 = results["hubscr"].halves["all"]
    assert hub5 != results["jiwer"].halves["all"]
    # The same words by plain sclite: marks are words, GLM and optional words unknown.
    for name, texts in (
        ("ref", [case.reference for case in CASES]),
        ("hyp", [case.recognized for case in CASES]),
    ):
        lines = (" ".join(text for _, _, text in each) for each in texts)
        # sclite takes braces and brackets in trn for its own.
        lines = (line.translate(str.maketrans("", "", "{}/@()")) for line in lines)
        content = "".join(f"spk-{n:02} {line}\n" for n, line in enumerate(lines))
        (tmp_path / name).write_text(content)
    arguments = f"--ref {tmp_path}/ref --hyp {tmp_path}/hyp --out {tmp_path}/out"
    scoring.score_command([*arguments.split(), "--scorer", "sclite"])
    plain = json.loads((tmp_path / "out" / "result.json").read_text())["halves"]["all"]
    assert plain["error_rate"] > hub5.error_rate + 10
