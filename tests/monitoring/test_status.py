"""The command: many experiments, a picture, watching, bad input."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from espnet_distopt.bin import status
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.figures import labels
from tests.monitoring.written import START, line, pair, step, write


@pytest.fixture
def exp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "time", lambda: START + 31)
    steps = step(30, 15), step(60, 30, loss=float("nan"))
    return write(Path("exp/asr"), *pair(line("begin", 0), *steps))


def test_experiments_are_shown_and_the_rest_is_skipped(
    exp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("exp/other"), [line("begin", 0, algorithm="none", learners=1)])
    Path("exp/asr_stats").mkdir()
    Path("exp/RESULTS.md").touch()
    status.main(sorted(map(str, Path("exp").iterdir())))
    out, err = capsys.readouterr()
    assert out.count("running") == 2
    assert "\n\nexp/other: running (stock ESPnet, 1 learner)\n" in out
    for name in ("RESULTS.md", "asr_stats"):
        assert f"exp/{name}: no distopt/learner*.jsonl in it, and no train.log" in err
    assert err.count("\n") == 2


def test_losses_are_compared_in_one_picture(exp: Path) -> None:
    ends = [line("epoch", 60 + rank, rank=rank, valid_loss=2.0) for rank in (0, 1)]
    write(exp, ends[:1], ends[1:])
    status.main([str(exp), str(exp), "--compare", "losses.png", "--title", "Two"])
    assert Path("losses.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path().glob(".*.part"))


def test_trainings_by_one_algorithm_have_their_names_in_the_legend(exp: Path) -> None:
    write(Path("other/asr"), *pair(line("begin", 0)))
    write(Path("exp/none"), [line("begin", 0, learners=1, algorithm="none")])
    read = [Experiment.read(Path(p)) for p in ("exp/asr", "other/asr", "exp/none")]
    found = labels([each for each in read if each is not None])
    assert found == ["adpsgd, exp/asr", "adpsgd, other/asr", "stock ESPnet"]


def test_watching_goes_on_until_it_is_stopped(
    exp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt
        write(exp, [step(60 + 10 * len(slept), 30)])

    monkeypatch.setattr(time, "sleep", sleep)
    status.main(["--watch", str(exp)])
    assert slept == [status.EVERY] * 3
    out = capsys.readouterr().out
    assert [f"{n}/100" in out for n in (60, 70, 80, 90)] == [True, True, True, False]


def damaged(text: str) -> str:
    Path("exp/bad/distopt").mkdir(parents=True)
    Path("exp/bad/distopt/learner0.jsonl").write_text(text)
    return "exp/bad"


def failed_early() -> str:
    Path("exp/bad").mkdir()
    Path("exp/bad/train.log").write_text("begins\nInputError: options of bmuf: bad\n\n")
    return "exp/bad"


def saves_of_a_loop() -> str:
    Path("exp/run").mkdir()
    Path("exp/run/epoch2.adpsgd.learner0of2.pt").touch()
    return "exp/run"


BAD = {
    "nothing of that name": (
        lambda: ["exp/as*"],
        "error: exp/as*: no such experiment directory",
    ),
    "no experiment": (
        lambda: ["exp"],
        "exp: no distopt/learner*.jsonl in it, and no train.log of ESPnet, skipped; "
        "there are trainings in exp/*",
    ),
    "a training that failed before its first epoch": (
        lambda: [failed_early()],
        "exp/bad: no epoch has begun by its train.log, which ends with: "
        "InputError: options of bmuf: bad",
    ),
    "another's file": (
        lambda: [damaged("loss: 3\n")],
        "error: exp/bad/distopt/learner0.jsonl:1: not a line of a learner: expected a "
        "JSON object",
    ),
    "a file without a whole line": (
        lambda: [damaged('{"time": 1')],
        "exp/bad: no distopt/learner*.jsonl in it, and no train.log of ESPnet, skipped",
    ),
    "a loop's own folder": (
        lambda: [saves_of_a_loop()],
        "exp/run: saves of a loop of your own, which itself prints session.metrics()",
    ),
    "a plot into nowhere": (
        lambda: ["exp/asr", "--compare", "missing/a.png"],
        "error: missing/a.png: cannot be written: No such file or directory",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(
    make: object, message: str, exp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        status.main(make())  # type: ignore[operator]
    assert end.value.code == 2
    assert capsys.readouterr().err == message + "\n"


def test_a_damaged_experiment_hides_no_other(
    exp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        status.main([damaged("loss: 3\n"), str(exp)])
    assert end.value.code == 2
    assert "exp/asr: running" in capsys.readouterr().out


def test_it_starts_without_torch(exp: Path) -> None:
    code = (
        "import sys; from espnet_distopt.bin import status; status.main(['exp/asr']);"
        "sys.exit(any(n in sys.modules for n in ('torch', 'espnet2', 'matplotlib')))"
    )
    root = Path(status.__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
