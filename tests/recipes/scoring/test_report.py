"""The Markdown report: a golden, and what is not known."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.commands.scoring import wer_report_command as main
from espnet_distopt.recipes.scoring.counts import Counts, Draws
from espnet_distopt.recipes.scoring.report import (
    DecodedExperiment,
    Environment,
    format_time,
    interval_note,
    overview,
    render,
)
from espnet_distopt.recipes.scoring.result import Result

GOLDEN = """\
# toy

Synthetic speech.

| experiment | algorithm | learners | epochs | training time | WER swbd (hubscr) | WER all (hubscr) | WER all (jiwer) |
| :-- | :-- | --: | --: | --: | --: | --: | --: |
| asr_adpsgd_2 | adpsgd | 2 | 10 | 1 h 05 min | 10.0 | 25.0 (19.5-31.2) | - |
| asr_none_1 | - | - | - | - | - | - | 50.0 |

In brackets: the 95 % interval, by a bootstrap over the speakers.

## Counts (percent): hubscr (sclite 2.10)

| experiment | test set | half | Snt | Wrd | Corr | Sub | Del | Ins | Err | S.Err |
| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: |
| asr_adpsgd_2 | eval2000 | swbd | 4 | 10 | 90.0 | 0.0 | 10.0 | 0.0 | 10.0 | 25.0 |
| asr_adpsgd_2 | eval2000 | all | 8 | 20 | 80.0 | 5.0 | 15.0 | 5.0 | 25.0 | 50.0 |

## Counts (percent): jiwer 4.0.0, normalised text

| experiment | test set | half | Snt | Wrd | Corr | Sub | Del | Ins | Err | S.Err |
| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: |
| asr_none_1 | eval2000 | all | 8 | 20 | 60.0 | 30.0 | 10.0 | 10.0 | 50.0 | 100.0 |

## Cross-check (percent), not comparable with the above: jiwer 4.0.0, normalised text

| experiment | test set | half | Snt | Wrd | Corr | Sub | Del | Ins | Err | S.Err |
| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: |
| asr_adpsgd_2 | eval2000 | all | 8 | 18 | 83.3 | 5.6 | 11.1 | 11.1 | 27.8 | 50.0 |

## Environment

- date: 2026-01-31
- commit: 0123456789ab-dirty
- python: 3.11.7
- torch: 2.13.0
- espnet: 202511
- trained with: espnet 202511, torch 2.12.0
- scorer: hubscr (sclite 2.10); jiwer 4.0.0, normalised text
- command: `./run.sh --ngpu 0`
"""  # noqa: E501

ENVIRONMENT = Environment(
    date="2026-01-31",
    commit="0123456789ab-dirty",
    python="3.11.7",
    torch="2.13.0",
    espnet="202511",
)


def counts(*numbers: int) -> Counts:
    names = tuple(Counts.__dataclass_fields__)
    return Counts(**dict(zip(names, numbers, strict=True)))


def add_result(experiment: Path, place: str, result: Result) -> None:
    directory = experiment / place / "score_wer"
    directory.mkdir(parents=True)
    result.write(directory)


@pytest.fixture
def experiments(tmp_path: Path) -> list[Path]:
    """Two scored experiments, the second of a trainer that left no summary."""
    paths = [tmp_path / "asr_adpsgd_2", tmp_path / "asr_none_1"]
    everything = counts(8, 20, 16, 1, 3, 1, 4)
    swbd = counts(4, 10, 9, 0, 1, 0, 1)
    jiwer = "jiwer 4.0.0, normalised text"
    check = Result(jiwer, {"all": counts(8, 18, 15, 1, 2, 2, 4)})
    result = Result(
        "hubscr (sclite 2.10)",
        {"swbd": swbd, "all": everything},
        intervals={"all": (19.51, 31.24)},
        speakers={"sw_4390-A": swbd},
        cross_check=check,
    )
    add_result(paths[0], "decode/eval2000", result)
    result = Result(jiwer, {"all": counts(8, 20, 12, 6, 2, 2, 8)})
    add_result(paths[1], "decode/eval2000", result)
    (paths[0] / "distopt").mkdir()
    summary = {"algorithm": "adpsgd", "learners": 2, "epochs": 10, "samples": 4000}
    summary |= {"seconds": 3899.6, "espnet": "202511", "torch": "2.12.0"}
    (paths[0] / "distopt" / "summary.json").write_text(json.dumps(summary))
    return paths


def test_golden(experiments: list[Path]) -> None:
    read = [decoded for path in experiments for decoded in DecodedExperiment.read(path)]
    command = "./run.sh --ngpu 0"
    note = "Synthetic speech."
    report = render(read, ENVIRONMENT, title="toy", command=command, note=note)
    assert report == GOLDEN


def test_the_decoded_models_are_named(experiments: list[Path]) -> None:
    def line() -> list[str]:
        read = [one for path in experiments for one in DecodedExperiment.read(path)]
        report = render(read, ENVIRONMENT, title="toy")
        return [each for each in report.splitlines() if "decoded model" in each]

    assert line() == []
    names = [path.name for path in experiments]
    average = "valid.loss.ave.pth (valid.loss.ave_3best.pth)"
    places = [path / "decode" / "eval2000" / "model" for path in experiments]
    places[0].write_text(f"{average}\n")
    assert line() == [f"- decoded model: {average} of {names[0]}"]
    places[1].write_text(f"{average}\n")
    assert line() == [f"- decoded model: {average}"]
    places[1].write_text("valid.acc.best.pth (7epoch.pth)\n")
    assert line() == [
        f"- decoded model: {average} of {names[0]}; "
        f"valid.acc.best.pth (7epoch.pth) of {names[1]}"
    ]


def test_command(
    experiments: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats, log = tmp_path / "stats_bpe", tmp_path / "run.log"
    stats.mkdir()
    log.touch()
    main([*map(str, [*experiments, log]), f"{stats}/", "--title", "toy"])
    out, err = capsys.readouterr()
    assert out.split("## Environment")[0] == (
        GOLDEN.split("## Environment")[0].replace("Synthetic speech.\n\n", "")
    )
    assert err == "run.log: not scored, left out\nstats_bpe: not scored, left out\n"
    assert "- python: 3." in out and "- commit: " in out
    assert "- command" not in out


def test_equal_names_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Result("sclite 2.10", {"all": counts(8, 20, 16, 1, 3, 1, 4)})
    paths = [tmp_path / "exp" / "asr", tmp_path / "old" / "asr"]
    for path in paths:
        add_result(path, "decode/dev", result)
    main(list(map(str, paths)))
    assert re.findall(r"^\| (\S+/\S+) \|", capsys.readouterr().out, re.M) == [
        *("exp/asr", "old/asr"),
        *("exp/asr", "old/asr"),
    ]


def test_several_test_sets_and_decodings(tmp_path: Path) -> None:
    result = Result("sclite 2.10", {"all": counts(8, 20, 16, 1, 3, 1, 4)})
    for place in ("decode/dev", "decode/test"):
        add_result(tmp_path / "one", place, result)
    for place in ("decode/dev", "decode_lm/dev"):
        add_result(tmp_path / "two", place, result)
    (one,) = DecodedExperiment.read(tmp_path / "one")
    two = DecodedExperiment.read(tmp_path / "two")
    assert list(one.results) == ["dev", "test"]
    assert [each.name for each in two] == ["two/decode", "two/decode_lm"]
    assert [list(each.results) for each in two] == [["dev"], ["dev"]]
    rows = render(two, ENVIRONMENT, title="x").splitlines()
    rate = "WER all (sclite)"
    head = f"| experiment | algorithm | learners | epochs | training time | {rate} |"
    assert rows[2] == head
    assert [row.split(" | ")[0] for row in rows[4:6]] == [
        "| two/decode",
        "| two/decode_lm",
    ]
    report = render([one], ENVIRONMENT, title="x")
    assert "| WER dev all (sclite) | WER test all (sclite) |" in report
    assert "In brackets" not in report and "Cross-check" not in report


def test_intervals_say_what_they_are_drawn_over(tmp_path: Path) -> None:
    total = {"all": counts(8, 20, 16, 1, 3, 1, 4)}
    drawn = [Draws("speakers", {"all": 40}), Draws("lines", {"all": 9}), None]
    for number, draws in enumerate(drawn):
        result = Result("jiwer 4", total, {"all": (1.0, 2.0)}, draws=draws)
        add_result(tmp_path / f"e{number}", "decode/test", result)
        path = tmp_path / f"e{number}/decode/test/score_wer/result.json"
        assert Result.read(path) == result
    read = [
        each for n in range(3) for each in DecodedExperiment.read(tmp_path / f"e{n}")
    ]
    assert interval_note(read).endswith(
        "by a bootstrap over 40 speakers, or over 9 lines, or over the speakers."
    )


@pytest.mark.parametrize(
    ("scorer", "marked"), [("sclite 2.10", [1, 3]), ("hubscr (sclite 2.10)", [1])]
)
def test_figures_of_other_test_data_are_marked(
    scorer: str, marked: list[int], tmp_path: Path
) -> None:
    # hubscr counts the words of the alternatives that suit the hypothesis.
    sizes = [(8, 20), (7, 20), (8, 20), (8, 19)]
    read = []
    for number, size in enumerate(sizes):
        result = Result(scorer, {"all": counts(*size, 16, 1, 3, 1, 4)})
        add_result(tmp_path / f"e{number}", "decode/test", result)
        read += DecodedExperiment.read(tmp_path / f"e{number}")
    cells = [row[-1] for row in overview(read).rows]
    assert [n for n, cell in enumerate(cells) if "other test data" in cell] == marked
    assert cells[0] == "25.0" and cells[1] == "25.0 (other test data)"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (7260, "2 h 01 min"),
    ],
)
def test_format_time(seconds: float | None, expected: str) -> None:
    assert format_time(seconds) == expected


def test_nothing_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for experiment, message in ((tmp_path, "score first"), (tmp_path / "x", "no such")):
        with pytest.raises(SystemExit) as stopped:
            main([str(experiment)])
        out, err = capsys.readouterr()
        assert stopped.value.code == 2
        assert out == ""
        assert message in err


def test_the_commit_is_that_of_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.py"
    file.touch()
    monkeypatch.setattr("espnet_distopt.recipes.scoring.report.__file__", str(file))
    assert Environment.current().commit == "-"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]

    def commit() -> None:
        subprocess.run(
            [*git, "commit", "-qm", "x", "--allow-empty"], cwd=tmp_path, check=True
        )

    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    commit()
    assert Environment.current().commit == "-"  # as in .venv of another project
    subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
    commit()
    assert re.fullmatch("[0-9a-f]{12}", Environment.current().commit)


def test_damaged_summary(experiments: list[Path]) -> None:
    (experiments[0] / "distopt" / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary\.json: not a JSON object"):
        DecodedExperiment.read(experiments[0])
