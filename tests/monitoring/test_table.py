"""What a person sees of trainings in all their states."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.lines import Line
from espnet_distopt.monitoring.table import table
from tests.monitoring.written import START, line, pair, step, write


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def exp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("exp/asr")


def show(exp: Path, at: float) -> str:
    found = Experiment.read(exp)
    assert found is not None
    return table(found, START + at)


RUNNING = pair(line("begin", 0), step(30, 15), step(60, 30))
HERE = {"step": 60, "steps": 60}
FIGURES = {"epoch_loss": 3.125, "valid_loss": 2.25, "consensus_distance": 0.004}
EPOCH_ENDED = pair(
    line("begin", 0),
    step(30, 15),
    replace(step(60, 30), event="validate", steps=60),
    line("epoch", 40, **HERE, **FIGURES),
)
SHOWN = """\
exp/asr: running (adpsgd, 2 learners)
  epoch 1/3  step 60/100  latest loss 2.500  16.0 samples/s  9 min 56 s left
  learner  host      step  samples/s  comm  wait  staleness  cpu  gpu  age
        0  node-1  60/100        8.0    2%    5%    1.2 (3)  98%    -  4 s
        1  node-2  60/100        8.0    2%    5%    1.2 (3)  98%    -  4 s
"""


def test_running(exp: Path) -> None:
    write(exp, *RUNNING)
    assert show(exp, 34) == SHOWN


def test_a_learner_that_lags_behind_is_marked(exp: Path) -> None:
    first, second = RUNNING
    lagging = [
        replace(each, step=each.step // 2, samples=each.samples // 2, batches=15)
        for each in second
    ]
    gpu = {"gpu": 0.87, "gpu_memory": 40 * 2.0**30, "slurm_job": "4711"}
    use = [[replace(each, **gpu) for each in lines] for lines in (first, lagging)]
    use[1][-1] = replace(use[1][-1], left=1200.0)
    write(exp, *use)
    assert (
        show(exp, 30)
        == """\
exp/asr: running (adpsgd, 2 learners, Slurm job 4711)
  epoch 1/3  step 30/100  latest loss 2.500  12.0 samples/s  20 min 00 s left
  learner  host      step  samples/s  comm  wait  staleness  cpu        gpu  age
        0  node-1  60/100        8.0    2%    5%    1.2 (3)  98%  87% 40.0G  0 s
        1  node-2  30/100        4.0    2%    5%    1.2 (3)  98%  87% 40.0G  0 s  slowest
"""  # noqa: E501
    )


def test_who_waits_in_collectives_is_not_the_slowest(exp: Path) -> None:
    first, second = RUNNING
    waits = [replace(each, comm_time=each.seconds / 2) for each in first]
    write(exp, waits, second)
    rows = show(exp, 30).splitlines()[3:]
    assert [row.endswith("slowest") for row in rows] == [False, True]


def test_stopped_and_resumed(exp: Path) -> None:
    stop = line("stop", 42, step=72, saved=True, signal="SIGUSR1")
    write(exp, *pair(line("begin", 0), step(60, 30), stop))
    said = show(exp, 5000)
    assert "exp/asr: stopped: saved after epoch 1 step 72 (adpsgd" in said
    assert said.count("1 h 22 min  stopped") == 2
    assert "16.0 samples/s  10 min 00 s left" in said

    again = {"pid": 200, "slurm_job": "4711", "slurm_restarts": 1}
    slower = {"seconds": 30.0, "comm_time": 0.6, "wait_time": 1.5}
    more = step(90, 5115, **slower, **again)
    write(exp, *pair(line("resume", 5100, step=72, **again), more))
    said = show(exp, 5116)
    assert "running (adpsgd, 2 learners, Slurm job 4711, restart 1)\n" in said
    assert "step 90/100  latest loss 2.500  8.0 samples/s  9 min 59 s left" in said
    row = "  90/100        4.0    2%    5%    1.2 (3)  98%    -  1 s\n"
    assert said.count(row) == 2


def test_stopped_without_a_state(exp: Path) -> None:
    write(exp, [line("begin", 0, learners=1), line("stop", 9, learners=1, saved=False)])
    said = show(exp, 10)
    assert "stopped after epoch 1 step 0: the epoch will be repeated" in said


@pytest.mark.parametrize("last", ["epoch", "end"])
def test_finished(last: str, exp: Path) -> None:
    lines = [[replace(each, max_epoch=1) for each in e] for e in EPOCH_ENDED]
    if last == "end":  # early stopping: not all epochs were needed
        ends = pair(line("end", 41, step=60, steps=60))
        lines = [[*one, *end] for one, end in zip(EPOCH_ENDED, ends, strict=True)]
    write(exp, *lines)
    state, position, _, *rows = show(exp, 3650).splitlines()
    assert state == "exp/asr: finished (adpsgd, 2 learners)"
    assert position == (
        f"  epoch 1/{1 if last == 'epoch' else 3}  step 60/60  loss 3.125  "
        "valid loss 2.250  consensus distance 0.004  16.0 samples/s"
    )
    assert all(row.endswith("98%    -  1 h 00 min  finished") for row in rows)


def test_killed_without_a_word(exp: Path) -> None:
    write(exp, *RUNNING)
    log = "epoch 1\nRuntimeError: connection closed\n======\n"
    (exp / "train.log").write_text(log)
    state, position, says, _, *rows = show(exp, 30 + 3 * 3600).splitlines()
    assert state == (
        "exp/asr: silent since 22:13:50, after epoch 1 step 60 (adpsgd, 2 learners)"
    )
    assert position.endswith("16.0 samples/s  10 min 00 s left")
    assert says == "  train.log says: RuntimeError: connection closed"
    assert all(row.endswith("  3 h 00 min  silent") for row in rows)
    assert "silent since 2023-11-14 22:13, after" in show(exp, 30 + 13 * 3600)


def test_one_learner_is_killed_and_the_others_go_on(exp: Path) -> None:
    first, second = RUNNING
    write(exp, [*first, step(300, 300)], second)
    said = show(exp, 301)
    assert "exp/asr: running, learner 1 silent (adpsgd" in said
    assert said.splitlines()[-1].endswith("4 min 31 s  silent")


def test_failed(exp: Path) -> None:
    first, second = RUNNING
    why = "ValueError: the loss is not finite"
    consequence = "PeerLostError: learner 1 ended with ValueError"
    write(exp, [*first, line("end", 41, error=consequence)])
    write(exp, [], [*second, line("end", 40, rank=1, error=why)])
    assert f"exp/asr: failed: learner 1: {why} (adpsgd, 2 learners)" in show(exp, 45)
    write(exp, [line("resume", 60)])
    assert "exp/asr: running (adpsgd" in show(exp, 65)


def test_failed_since_another_learner_was_killed(exp: Path) -> None:
    first, second = RUNNING
    why = "PeerLostError: learner 1 has been silent for 30 s"
    write(exp, [*first, line("end", 61, error=why)], second)
    assert f"exp/asr: failed: learner 0: {why} (adpsgd" in show(exp, 65)


PATIENCE = {
    "amid steps": (step(30, 0), 119, 121),
    "amid long steps": (step(30, 0, seconds=300.0), 1199, 1201),
    "while it starts": (line("begin", 0), 1799, 1801),
    "while it validates": (line("validate", 0), 1799, 1801),
    "between epochs": (line("epoch", 0), 1799, 1801),
}


@pytest.mark.parametrize(("last", "short", "long"), PATIENCE.values(), ids=PATIENCE)
def test_silence(last: object, short: float, long: float, exp: Path) -> None:
    write(exp, [last])  # type: ignore[list-item]
    found = Experiment.read(exp)
    assert found is not None
    assert found.state(START + short) == "running"
    assert found.state(START + long) == "silent"


def test_a_learner_without_a_file_is_counted(exp: Path) -> None:
    write(exp, RUNNING[0])
    assert "(adpsgd, 1 of 2 learners)" in show(exp, 30)


def test_learners_of_an_earlier_and_larger_run_are_left_out(exp: Path) -> None:
    write(exp, *RUNNING)
    write(exp, [line("resume", 100, learners=1)])
    assert "(adpsgd, 1 learner)" in show(exp, 101)
    assert "node-2" not in show(exp, 101)


def test_validation_is_said(exp: Path) -> None:
    write(exp, *[lines[:-1] for lines in EPOCH_ENDED])
    assert "step 60/60  validates  latest loss" in show(exp, 31)


def test_a_loss_that_is_not_finite_is_shown(exp: Path) -> None:
    write(exp, [step(30, 15, loss=float("nan"))])
    assert "loss nan" in show(exp, 16)


def test_rates_are_those_of_the_last_minutes(exp: Path) -> None:
    slow = [step(30, 15.0 * n, samples=0) for n in range(1, 11)]
    fast = [step(30, 150 + 15.0 * n, samples=150) for n in range(1, 21)]
    write(exp, [*slow, *fast])
    assert "10.0 samples/s" in show(exp, 450)


def test_a_dead_learner_is_lost_and_the_run_goes_on(exp: Path) -> None:
    def own(event: str, at: float, *ranks: int, **more: str) -> list[list[Line]]:
        return [
            [line(event, at, rank=rank, learners=3, **more)] if rank in ranks else []
            for rank in range(3)
        ]

    write(exp, *own("begin", 0, 0, 1, 2))
    write(exp, *[[step(30, 15, rank=rank, learners=3)] for rank in range(3)])
    write(exp, *own("members", 20, 1, 2, members="1,2"))
    write(exp, [], *[[step(60, 5000, rank=rank, learners=3)] for rank in (1, 2)])
    first, position, _, *rows = show(exp, 5001).splitlines()
    assert first == (
        "exp/asr: running, learner 0 lost 22:13:40, members 1 2 (adpsgd, 3 learners)"
    )
    assert "step 60/100" in position and "16.0 samples/s" in position
    assert [row.endswith("lost") for row in rows] == [True, False, False]

    write(exp, *own("resume", 5010, 0))
    write(exp, *own("members", 5011, 1, 2, members="0,1,2"))
    first, *_ = show(exp, 5012).splitlines()
    assert "learner 0 lost 22:13:40, learner 0 joined 23:36:51 (" in first


def test_a_return_is_told_that_the_oldest_learner_has_not_noticed(exp: Path) -> None:
    """It has stopped before."""
    write(exp, *[[line("begin", rank, rank=rank, learners=3)] for rank in range(3)])
    write(
        exp, [], *[[line("members", 20, rank=rank, members="1,2")] for rank in (1, 2)]
    )
    write(exp, [line("resume", 30)])
    write(exp, [], [], [line("members", 31, rank=2, learners=3, members="0,1,2")])
    stop = {"event": "stop", "at": 32, "learners": 3, "saved": True}
    write(exp, *[[line(rank=rank, **stop)] for rank in range(3)])
    first, *_ = show(exp, 40).splitlines()
    assert "learner 0 lost 22:13:40, learner 0 joined 22:13:51 (" in first


def test_deaths_of_an_earlier_run_are_forgotten(exp: Path) -> None:
    write(exp, *pair(line("begin", 0), step(30, 15)))
    write(exp, [line("members", 20, members="0")])
    assert "learner 1 lost" in show(exp, 30)
    write(exp, *pair(line("resume", 40), step(60, 55)))
    first, *_ = show(exp, 56).splitlines()
    assert first == "exp/asr: running (adpsgd, 2 learners)"


def test_what_is_not_measured_is_not_shown_as_zero(exp: Path) -> None:
    """ESPnet's DDP does not tell how long its learners wait for each other."""
    unmeasured = {"comm_time": None, "wait_time": None, "bytes": None}
    more = {"staleness": None, "algorithm": "none", **unmeasured}
    first, second = pair(line("begin", 0, algorithm="none"), step(30, 15, **more))
    write(exp, first, [*second[:-1], replace(second[-1], seconds=30.0)])
    first_line, _, _, *rows = show(exp, 16).splitlines()
    assert first_line == "exp/asr: running (DDP, 2 learners)"
    assert [row.split()[4:7] for row in rows] == [["-", "-", "-"]] * 2
    assert not any(row.endswith("slowest") for row in rows)


def test_the_loss_of_an_epoch_is_that_of_the_log(exp: Path) -> None:
    """It was that of the last seconds, and of the mean of all learners."""
    first, second = EPOCH_ENDED
    write(exp, first, [*second[:-1], replace(second[-1], epoch_loss=4.0)])
    assert "step 60/60  loss 3.125  valid loss 2.250" in show(exp, 41)


STOCK = """\
# python -m espnet2.bin.asr_train --max_epoch 3
[node-7{process}] 2023-11-14 22:13:20,000 (asr:487) INFO: Vocabulary size: 30
[node-7{process}] 2023-11-14 22:13:20,500 (trainer:336) INFO: 1/3epoch started
[node-7{process}] 2023-11-14 22:13:30,000 (trainer:811) INFO: 1epoch:train:1-50batch: \
iter_time=0.003, forward_time=0.359loss_ctc=66.201, loss=1.066e+03backward_time=0.07
/usr/lib/python3/warnings.py: UserWarning: loss=7
[node-7{process}] 2023-11-14 22:14:20,500 (trainer:394) INFO: 1epoch results: [train] \
iter_time=0.002, loss_ctc=52.744, loss=52.744, backward_time=0.68, [valid] loss_ctc=1, \
cer=nan, loss=48.250, time=1.5 seconds, total_count=2
"""


@pytest.mark.parametrize(
    ("process", "who"), [("", "stock ESPnet, 1 learner"), (":0/2", "DDP, 2 learners")]
)
def test_a_training_of_stock_espnet(process: str, who: str, exp: Path) -> None:
    exp.mkdir(parents=True)
    log = STOCK.format(process=process)
    (exp / "train.log").write_text("".join(log.splitlines(keepends=True)[:5]))
    assert f"exp/asr: running ({who})\n  epoch 1/3  step 50/?  latest loss 1066.0" in (
        show(exp, 600)
    )
    (exp / "train.log").write_text(log)
    assert (
        show(exp, 60.5)
        == f"""\
exp/asr: running ({who})
  epoch 1/3  step 50/?  loss 52.744  valid loss 48.250  2 min 00 s left
  learner  host    step  samples/s  comm  wait  staleness  cpu  gpu  age
        0  node-7  50/?          -     -     -          -    -    -  0 s
"""
    )
    with (exp / "train.log").open("a") as file:
        file.write(f"[node-7{process}] 2023-11-14 22:15:00,000 (trainer:324) INFO: ")
        file.write("2/3epoch started. Estimated time to finish: 2 minutes\n")
        file.write(f"[node-7{process}] 2023-11-14 22:15:10,000 (trainer:534) INFO: ")
        file.write("The training was finished at 3 epochs \n")
    assert f"exp/asr: finished ({who})" in show(exp, 120)
    write(exp, *RUNNING)
    assert "(adpsgd, 2 learners)" in show(exp, 30), "our own files tell more"
