"""What learners write while they train, and what the status then says."""

import json
import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from espnet2.train.reporter import Reporter

from espnet_distopt.core.membership import Members
from espnet_distopt.espnet.training import progress as progress_module
from espnet_distopt.espnet.training.epoch import without
from espnet_distopt.espnet.training.progress import Progress
from espnet_distopt.monitoring import lines
from espnet_distopt.monitoring.experiment import Experiment
from tests.espnet.toy import arguments, write_toy_data
from tests.espnet.training.learners import SignalAt, trained


@pytest.fixture
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Progress:
    monkeypatch.setattr(progress_module, "INTERVAL", 0.0)
    return Progress(tmp_path, 3, talks=False, algorithm="adpsgd", learners=2)


def written(folder: Path) -> list[lines.Line]:
    return lines.read(folder / "distopt" / "learner0.jsonl")


def advance(
    progress: Progress, reporter: object, loss: float, **figures: float
) -> None:
    """Train on one batch of four."""
    with reporter.measure_time("step"):  # type: ignore[attr-defined]
        reporter.register({"loss": loss})  # type: ignore[attr-defined]
    progress.samples += 4
    progress.batches += 1
    progress.step(progress.batches, reporter, figures)  # type: ignore[arg-type]
    reporter.next()  # type: ignore[attr-defined]


def test_lines_hold_what_happened_since_the_last(
    progress: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter()
    reporter.set_epoch(1)
    progress.begin_epoch(1, 10)
    with reporter.observe("train") as sub:
        advance(progress, sub, 5.0, comm_time=0.5, bytes=8.0, staleness=1.0)
        monkeypatch.setattr(progress_module, "INTERVAL", 1e9)
        advance(progress, sub, 3.0, comm_time=0.25, wait_time=1.0, exchanges=2.0)
        advance(progress, sub, 2.0, comm_time=0.25, staleness=2.0, staleness_max=7.0)
        advance(progress, sub, 1.0, staleness=4.0, staleness_max=5.0)
        progress.end_training(sub)
    with reporter.observe("valid") as sub:
        sub.register({"loss": 1.5})
        sub.register({"consensus_distance": 0.125})
        sub.next()
        progress.end_epoch(sub, 32.0)
    found = written(tmp_path)
    assert [each.event for each in found] == ["begin", "step", "validate", "epoch"]
    _, first, second, epoch = found
    assert (first.step, first.batches, first.samples, first.loss) == (1, 1, 4, 5.0)
    assert (first.comm_time, first.bytes, first.staleness) == (0.5, 8.0, 1.0)
    assert (second.step, second.batches, second.samples) == (4, 3, 12)
    assert (second.loss, second.comm_time, second.wait_time) == (2.0, 0.5, 1.0)
    assert (second.exchanges, second.bytes) == (2.0, None)
    assert (second.staleness, second.staleness_max) == (3.0, 7.0)
    assert second.seconds > 0
    assert (epoch.seconds, epoch.samples, epoch.epoch_samples) == (0.0, 0, 16)
    assert (epoch.epoch_loss, epoch.valid_loss) == (2.75, 1.5)
    assert epoch.consensus_distance == 0.125
    assert epoch.left is not None


def test_a_change_of_the_members_within_the_training_takes_time_of_it(
    progress: Progress, tmp_path: Path
) -> None:
    """Else the time of waiting for a dead learner were a part of too short a time."""
    alone = Members.everybody(2).without([1])
    reporter = Reporter()
    reporter.set_epoch(1)
    progress.begin_epoch(1, 10)
    with reporter.observe("train") as sub:
        advance(progress, sub, 5.0)
        progress.batches += 1
        progress.follow(alone)
        progress.follow(alone)
        advance(progress, sub, 4.0, wait_time=30.0)
        progress.end_training(sub)
    progress.follow(alone)
    members = [line for line in written(tmp_path) if line.event == "members"]
    assert [line.batches for line in members] == [1, 0, 0]
    assert [line.seconds > 0 for line in members] == [True, False, False]


def test_the_learner_that_prints_says_who_goes_on(
    progress: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    everybody = Members.everybody(2)
    progress.begin_epoch(1, 10)
    progress.follow(everybody.without([1]))
    progress.talks = True
    progress.follow(everybody.without([1]))
    progress.follow(everybody)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/3  lost: learner 1; 1 of 2 left",
        "epoch 1/3  all 2 learners train again",
    ]


def test_time_between_epochs_is_not_of_the_next_epochs_training() -> None:
    between = {"comm_time": 2.0, "wait_time": 3.0, "bytes": 9.0}
    figures = {"comm_time": 2.5, "wait_time": 3.0, "bytes": 10.0, "exchanges": 1.0}
    own = {"comm_time": 0.5, "wait_time": 0.0, "bytes": 10.0, "exchanges": 1.0}
    assert without(figures, between) == own
    assert figures["comm_time"] == 2.5


RESUMES = {
    "a new training": (1, 0, "begin", 0),
    "a later epoch": (2, 0, "resume", 0),
    "within an epoch": (1, 7, "resume", 7),
    "only its validation": (2, None, "resume", 10),
}


@pytest.mark.parametrize(
    ("epoch", "done", "event", "step"), RESUMES.values(), ids=RESUMES
)
def test_the_first_line_says_where_it_goes_on(
    epoch: int,
    done: int | None,
    event: str,
    step: int,
    progress: Progress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress.begin_epoch(epoch, 10, done, {"samples": 28, "batches": 7, "seconds": 5.0})
    progress.begin_epoch(epoch + 1, 10)
    [line] = written(tmp_path)
    assert (line.event, line.epoch, line.step) == (event, epoch, step)
    assert (line.epoch_samples, line.samples, line.pid) == (28, 0, os.getpid())


def test_a_validation_alone_has_no_training_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path, 3, talks=True, algorithm="adpsgd", learners=2)
    reporter = Reporter()
    reporter.set_epoch(2)
    progress.begin_epoch(2, 10, None)
    with reporter.observe("valid") as sub:
        sub.register({"loss": 1.5})
        sub.next()
        progress.end_epoch(sub, 32.0)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "epoch 2/3  goes on with its validation"
    assert said[1].startswith("epoch 2/3  valid loss 1.500")


@pytest.mark.parametrize(
    ("algorithm", "wrong", "told"),
    [
        ("bmuf_adam", 1.0, [4, 8]),
        ("adpsgd", 0.93, [4, 8]),
        ("bmuf_adam", 0.4, []),
        ("adpsgd", 2.19, []),
        ("adpsgd", None, []),
    ],
)
def test_a_model_that_does_not_begin_to_learn_is_told_of_now_and_then(
    algorithm: str,
    wrong: float | None,
    told: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress(tmp_path, 9, talks=True, algorithm=algorithm, learners=2)
    reporter = Reporter()
    for epoch in range(1, 10):
        reporter.set_epoch(epoch)
        progress.begin_epoch(epoch, 100)  # 300 steps in epoch 3
        with reporter.observe("valid") as sub:
            figures = {"loss": 50.0} | ({} if wrong is None else {"cer_ctc": wrong})
            sub.register(figures)
            sub.next()
            progress.end_epoch(sub, 32.0)
    said = capsys.readouterr().out.splitlines()
    warned = [line for line in said if "learning rate is too high" in line]
    assert [int(line.split("/")[0].split()[1]) for line in warned] == told
    assert all(("warmup" in line) == (algorithm == "bmuf_adam") for line in warned)


def test_the_slurm_job_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    Progress(tmp_path, 3, False, "none", 1).begin_epoch(1, None)
    [line] = written(tmp_path)
    assert (line.slurm_job, line.slurm_restarts, line.steps) == ("4711", 2, None)


ENDS = {
    "well": (None, None),
    "with an error": (ValueError("no\nmore"), "ValueError: no"),
    "with an error without words": (KeyboardInterrupt(), "KeyboardInterrupt"),
}


@pytest.mark.parametrize(("error", "said"), ENDS.values(), ids=ENDS)
def test_the_last_line_says_how_it_ended(
    error: BaseException | None, said: str | None, progress: Progress, tmp_path: Path
) -> None:
    progress.begin_epoch(1, 10)
    progress.leave(error)
    last = written(tmp_path)[-1]
    assert (last.event, last.error) == ("end", said)


def test_a_stop_says_that_espnet_has_to_resume(
    progress: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.talks = True
    progress.begin_epoch(1, 10)
    progress.stop("SIGTERM", saved=True, resume=False)
    said = capsys.readouterr().out
    assert "state saved: start again with --resume true to go on" in said


def test_a_training_goes_on_when_its_lines_cannot_be_written(
    progress: Progress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "distopt").touch()
    with caplog.at_level(logging.WARNING):
        progress.begin_epoch(1, 10)
    assert "learner0.jsonl: cannot be written" in caplog.text


def test_the_status_of_a_training_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    write_toy_data(tmp_path, train=40)
    exp = tmp_path / "exp"
    options = arguments(tmp_path, exp, "--distopt", "allreduce", "--log_interval", "4")
    options += ["--use_tensorboard", "true"]
    trained(options, 2, tmp_path, SignalAt(14, 1, signal.SIGUSR1), ends=75)
    stopped = Experiment.read(exp)
    assert stopped is not None
    now = time.time()
    step = stopped.last.step
    assert stopped.describe(now) == f"stopped: saved after epoch 2 step {step}"
    assert 4 <= step <= 7

    trained(options, 2, tmp_path)
    finished = Experiment.read(exp)
    assert finished is not None
    assert finished.state(now) == "finished"
    summary = json.loads((exp / "distopt" / "summary.json").read_text())
    total = 0
    for rank, learner in finished.learners.items():
        events = [line.event for line in learner.lines if line.event != "step"]
        assert events[:4] == ["begin", "validate", "epoch", "stop"]
        assert [e for e in events[4:] if e != "end"] == ["resume", "validate", "epoch"]
        assert {line.rank for line in learner.lines} == {rank}
        assert learner.last.epoch_samples == 20
        total += sum(line.samples for line in learner.lines)
        share = learner.per_second("comm_time")
        assert share is not None
        assert 0 < share < 1
    assert total == summary["samples"] == 80
    assert finished.at_epoch_end("consensus_distance") == 0.0
    assert finished.samples_per_second is not None
    assert utterances_in_tensorboard(exp, "valid_by_samples/loss") == [40, 80]
    first, second, *later = utterances_in_tensorboard(exp, "train_by_samples/loss")
    assert (first, second) == (12, 28)  # ESPnet writes before a step is counted.
    assert later and all(40 < count <= 80 for count in later)


def utterances_in_tensorboard(exp: Path, name: str) -> list[int]:
    """Return where a figure is written on the axis, in all runs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = []
    for path in sorted((exp / "tensorboard" / "train").iterdir()):
        events = EventAccumulator(str(path)).Reload()
        if name in events.Tags()["scalars"]:
            found += [event.step for event in events.Scalars(name)]
    return found


def test_the_time_left_has_validation_and_saving_in_it_and_not_the_start_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now, time=time.time)
    monkeypatch.setattr(progress_module, "time", clock)
    progress = Progress(tmp_path, 4, talks=True, algorithm="adpsgd", learners=2)
    reporter = Reporter()
    # The start, training, validation and saving of each epoch, in seconds.
    lengths = [(20.0, 40.0, 10.0, 5.0), (0.0, 30.0, 10.0, 5.0), (0.0, 36.0, 10.0, 5.0)]
    for epoch, (start, training, validation, saving) in enumerate(lengths, 1):
        now += start
        reporter.set_epoch(epoch)
        progress.begin_epoch(epoch, 2)
        with reporter.observe("train") as sub:
            now += training / 2
            advance(progress, sub, 5.0)
            now += training / 2
            progress.end_training(sub)
        with reporter.observe("valid") as sub:
            now += validation
            sub.register({"loss": 1.5})
            sub.next()
            progress.end_epoch(sub, 8.0)
        now += saving
    said = [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert said == [
        "at least 2 min 20 s left",  # Half an epoch of 40 s, and three more.
        "3 min 30 s left",  # Three of 70 s, the start in them.
        "3 min 10 s left",  # 70 s less half a training of 40 s, and two of 70 s.
        "1 min 30 s left",  # Two of 45 s, from the end of one to that of the next.
        "1 min 15 s left",
        "48 s left",  # The mean of 45 and 51.
    ]
