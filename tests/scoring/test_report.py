"""The Markdown report: a golden, and what is not known."""

import json
from pathlib import Path

import pytest

from espnet_distopt.bin.wer_report import main
from espnet_distopt.errors import InputError
from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.experiment import Experiment
from espnet_distopt.scoring.report import Environment, format_time, render
from espnet_distopt.scoring.result import Result

GOLDEN = """\
# toy

Synthetic speech.

| experiment | algorithm | learners | epochs | training time | WER swbd | WER all |
| :-- | :-- | --: | --: | --: | --: | --: |
| asr_adpsgd_2 | adpsgd | 2 | 10 | 1 h 05 min | 10.0 | 25.0 |
| asr_none_1 | - | - | - | - | - | 50.0 |

## Counts (percent)

| experiment | test set | half | scorer | Snt | Wrd | Corr | Sub | Del | Ins | Err | S.Err |
| :-- | :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: |
| asr_adpsgd_2 | eval2000 | swbd | sclite 2.10 | 4 | 10 | 90.0 | 0.0 | 10.0 | 0.0 | 10.0 | 25.0 |
| asr_adpsgd_2 | eval2000 | all | sclite 2.10 | 8 | 20 | 80.0 | 5.0 | 15.0 | 5.0 | 25.0 | 50.0 |
| asr_none_1 | eval2000 | all | jiwer 4.0.0 | 8 | 20 | 60.0 | 30.0 | 10.0 | 10.0 | 50.0 | 100.0 |

## Environment

- date: 2026-01-31
- commit: 0123456789ab-dirty
- python: 3.11.7
- torch: 2.13.0
- espnet: 202511
- trained with: espnet 202511, torch 2.12.0
- scorer: jiwer 4.0.0, sclite 2.10
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
    result = Result("sclite 2.10", {"swbd": swbd, "all": everything})
    add_result(paths[0], "decode/eval2000", result)
    result = Result("jiwer 4.0.0", {"all": counts(8, 20, 12, 6, 2, 2, 8)})
    add_result(paths[1], "decode/eval2000", result)
    (paths[0] / "distopt").mkdir()
    summary = {"algorithm": "adpsgd", "learners": 2, "epochs": 10, "samples": 4000}
    summary |= {"seconds": 3899.6, "espnet": "202511", "torch": "2.12.0"}
    (paths[0] / "distopt" / "summary.json").write_text(json.dumps(summary))
    return paths


def test_golden(experiments: list[Path]) -> None:
    read = [Experiment.read(path) for path in experiments]
    command = "./run.sh --ngpu 0"
    note = "Synthetic speech."
    report = render(read, ENVIRONMENT, title="toy", command=command, note=note)
    assert report == GOLDEN


def test_command(
    experiments: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "asr_bmuf_2"
    empty.mkdir()
    main([*map(str, experiments), f"{empty}/", "--title", "toy"])
    out, err = capsys.readouterr()
    assert out.split("## Environment")[0] == (
        GOLDEN.split("## Environment")[0].replace("Synthetic speech.\n\n", "")
    )
    assert err == "asr_bmuf_2: not scored, left out\n"
    assert "- python: 3." in out and "- commit: " in out
    assert "- command" not in out


def test_several_test_sets_and_decodings(tmp_path: Path) -> None:
    result = Result("sclite 2.10", {"all": counts(8, 20, 16, 1, 3, 1, 4)})
    for place in ("decode/dev", "decode/test"):
        add_result(tmp_path / "one", place, result)
    for place in ("decode/dev", "decode_lm/dev"):
        add_result(tmp_path / "two", place, result)
    one, two = (Experiment.read(tmp_path / name) for name in ("one", "two"))
    assert list(one.results) == ["dev", "test"]
    assert list(two.results) == ["decode/dev", "decode_lm/dev"]
    report = render([one], ENVIRONMENT, title="x")
    assert "| WER dev all | WER test all |" in report


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


def test_damaged_summary(experiments: list[Path]) -> None:
    (experiments[0] / "distopt" / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary\.json: not a JSON object"):
        Experiment.read(experiments[0])
