"""Hub5 scoring by the command: equal to hubscr's own figures, and bad input."""

import json
import re
from pathlib import Path

import pytest

from espnet_distopt.recipes.commands import scoring
from espnet_distopt.recipes.commands.scoring import score_hub5_command as main
from espnet_distopt.recipes.scoring.result import Result
from espnet_distopt.recipes.scoring.scorers import (
    REPORTS,
    find_hubscr,
    parse_raw_summary,
)
from tests.recipes.scoring.hub5_files import (
    GLM,
    HALVES,
    HEADER,
    WORDS,
    needs_sctk,
    options_of,
    random_task,
    run_hubscr,
)
from tests.recipes.scoring.known_counts import CASES, KnownCase, side, write_task
from tests.refusal import Refused

STM = """\
en_4156 A en_4156_A 1.00 2.00 <O,CHE> we're here (%HESITATION) okay
en_4156 A en_4156_A 2.00 3.00 <O,CHE> IGNORE_TIME_SEGMENT_IN_SCORING
en_4156 B en_4156_B 2.00 3.00 <O,CHE> yeah
sw_4390 A sw_4390_A 1.00 2.00 <O,SWB> the (do-) dog
sw_4390 B sw_4390_B 3.00 4.00 <O,SWB> hello { there / @ }
"""
CTM = """\
en_4156 A 1.10 0.20 we
en_4156 A 1.30 0.20 are
en_4156 A 1.50 0.20 here
en_4156 A 1.70 0.20 uh
en_4156 A 2.70 0.20 junk
sw_4390 A 1.10 0.10 a
sw_4390 A 1.20 0.10 dog
sw_4390 B 3.20 0.10 hello
"""


def score(directory: Path, *options: str, **files: str | bytes | None) -> Path:
    """Write the three files, those given in other words, and score."""
    contents = {"stm": HEADER + STM, "glm": GLM, "ctm": CTM} | files
    arguments = ["--out", str(directory / "score_wer")]
    for name, content in contents.items():
        path = directory / name
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
        arguments += [f"--{name}", str(path)]
    main([*arguments, *options])
    return directory / "score_wer"


@needs_sctk
def test_files_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = score(tmp_path, *HALVES)
    names = {"hyp.ctm", *REPORTS, "result.json", "result.txt", "worst.json"}
    assert {path.name for path in out.iterdir()} == names
    result = Result.read(out / "result.json")
    assert re.fullmatch(r"hubscr \(sclite [\d.]+\)", result.scorer)
    four = {
        name: (c.correct, c.substitutions, c.deletions, c.insertions)
        for name, c in (result.halves | result.speakers).items()
    }
    assert four == {
        "swbd": (3, 1, 0, 0),
        "callhome": (4, 0, 2, 0),
        "all": (7, 1, 2, 0),
        "en_4156-A": (4, 0, 1, 0),
        "en_4156-B": (0, 0, 1, 0),
        "sw_4390-A": (2, 1, 0, 0),
        "sw_4390-B": (1, 0, 0, 0),
    }
    assert result.intervals.keys() == {"swbd", "callhome", "all"}
    assert result.cross_check is not None
    assert result.cross_check.scorer.endswith(", normalised text")
    assert result.cross_check.halves["callhome"].substitutions == 1
    text = (out / "result.txt").read_text()
    assert "cross-check: jiwer" in text and "sw_4390-B" in text
    assert text.startswith(capsys.readouterr().out)


@needs_sctk
def test_halves_are_hubscrs_on_their_lines_and_by_the_labels(tmp_path: Path) -> None:
    paths = random_task(tmp_path, 3, markup=False, recognized=WORDS)
    out = tmp_path / "out"
    main([*options_of(paths), "--out", str(out), *HALVES])
    halves = Result.read(out / "result.json").halves
    for half, drop in (("swbd", "en_"), ("callhome", "sw_"), ("all", "")):
        raw = run_hubscr(tmp_path / half, paths, drop)
        assert parse_raw_summary(raw) == halves[half]
        assert halves[half].errors > 20
    lur = (out / "hyp.ctm.filt.lur").read_text()
    line = next(line for line in lur.splitlines() if "Set Sum/Avg" in line)
    figures = [(int(n), r) for n, r in re.findall(r"\[(\d+)\]\s+([\d.]+)", line)]
    expected = [halves[name] for name in ("all", "swbd", "callhome")]
    assert figures == [(half.words, f"{half.error_rate:.1f}") for half in expected]


@pytest.mark.parametrize("ctm", ["", ";; a system\n", "sw_4390 A 1.10 0.10 uh\n"])
@pytest.mark.parametrize(
    ("scorer", "deleted"),
    # hubscr takes the shortest alternatives, and nothing for what is optional.
    [pytest.param("hubscr", 7, marks=needs_sctk), ("jiwer", 8)],
)
def test_nothing_to_score_is_all_deletions(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ctm: str,
    scorer: str,
    deleted: int,
) -> None:
    out = score(tmp_path, "--scorer", scorer, ctm=ctm)
    counts = Result.read(out / "result.json").halves["all"]
    four = (counts.correct, counts.substitutions, counts.deletions, counts.insertions)
    assert four == (counts.words - deleted, 0, deleted, 0)
    assert f"{tmp_path}/ctm: no word to score: all words" in capsys.readouterr().out


def test_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    files = {"stm": HEADER + STM, "ctm": CTM}
    first = (score(tmp_path, "--scorer", "jiwer") / "result.json").read_text()
    lines = {name: content.splitlines(keepends=True) for name, content in files.items()}
    turned = {name: "".join(reversed(each)) for name, each in lines.items()}
    second = (
        score(tmp_path, "--scorer", "jiwer", **turned) / "result.json"
    ).read_text()
    assert first == second


def test_without_sctk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    out = score(tmp_path, *HALVES)
    result = Result.read(out / "result.json")
    assert result.scorer.startswith("jiwer ") and result.cross_check is None
    assert "no hubscr (SCTK) found: scoring with jiwer" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        score(tmp_path, "--scorer", "hubscr")
    assert "hubscr is not installed" in capsys.readouterr().err


BAD: dict[str, tuple[dict[str, str | bytes | None], tuple[str, ...], str]] = {
    "empty glm": ({"glm": ""}, (), "glm: empty"),
    "stm with nothing to score": (
        {"stm": "sw_1 A sw_1_A 1.00 2.00 <O> IGNORE_TIME_SEGMENT_IN_SCORING\n"},
        (),
        "stm: no segment to score",
    ),
    "glm that csrfilt ends at": (
        {"glm": GLM.replace("=> %HESI", "%HESI")},
        ("--scorer", "hubscr"),
        "damaged rules in the GLM",
    ),
    "file that the stm lacks": (
        {"ctm": CTM + "sw_9999 A 1.0 0.1 x\n"},
        (),
        "ctm: has words on sw_9999-A, which",
    ),
    "channel that the stm lacks": (
        {"stm": HEADER + STM.replace("sw_4390 B", "sw_4391 B")},
        (),
        "ctm: has words on sw_4390-B, which",
    ),
    "markup in ctm": (
        {"ctm": CTM + "sw_4390 A 1.5 0.1 {\n"},
        (),
        "ctm: '{' at 1.50 s on sw_4390-A is markup to sclite",
    ),
    "half without words": (
        {"stm": HEADER + STM.replace("yeah", "")},
        ("--half", "b=en_4156-B"),
        "no reference word in 'b'",
    ),
    "no sctk": ({}, ("--sctk", "/none"), "/none: no hubscr.pl and sclite"),
    "not sctk": ({}, ("--sctk", "/bin/true"), "/bin/true: no hubscr.pl"),
    "labels without definition": ({"stm": STM}, (), "Label id 'O' lookup failed"),
}
BY_HUBSCR = {"glm that csrfilt ends at", "labels without definition"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=needs_sctk) if k in BY_HUBSCR else k for k in BAD]
)
def test_bad_input(tmp_path: Path, refused: Refused, kind: str) -> None:
    files, options, message = BAD[kind]
    out = tmp_path / "score_wer"
    out.mkdir()
    for name in ("result.json", "result.txt", "worst.json", *REPORTS):
        (out / name).write_text("of an earlier scoring")
    error = refused(lambda: score(tmp_path, *options, **files))
    assert message.lower() in error.lower()
    assert list(out.iterdir()) == []


def test_result_holds_everything(tmp_path: Path) -> None:
    out = score(tmp_path, "--scorer", "jiwer", *HALVES)
    result = Result.read(out / "result.json")
    assert result.to_json() == (out / "result.json").read_text()
    content = json.loads(result.to_json())
    assert content["halves"]["swbd"]["interval"] == list(result.intervals["swbd"])
    assert set(content["speakers"]) == set(result.speakers)
    sides = {"swbd": 2, "callhome": 2, "all": 4}
    assert content["bootstrap_over"] == {"kind": "speakers", "numbers": sides}


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
