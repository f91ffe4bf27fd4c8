"""Trainings that began anew, were stopped for hours, or took in a replacement."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from espnet_distopt.monitoring.duration import TimeUnit
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.figures import validations
from espnet_distopt.monitoring.lines import Line
from tests.monitoring.written import START, line, pair, step, write

SECONDS = TimeUnit("seconds", 1)
DAY = 86400


def read(directory: Path, *learners: Sequence[Line]) -> Experiment:
    found = Experiment.read(write(directory, *map(list, learners)), whole=True)
    assert found is not None
    return found


def epochs(*numbers: int, at: float, loss: float) -> list[Line]:
    return [line("epoch", at + 20 * n, epoch=n, valid_loss=loss) for n in numbers]


EARLIER = [line("begin", 0), step(100, 15, loss=9.0), *epochs(1, 2, 3, at=0, loss=9.0)]
ANEW = [line("begin", DAY), step(100, DAY + 15, loss=1.0)]
ENDS = {
    "finished": line("end", 61, epoch=3),
    "failed": line("end", 61, epoch=3, error="ValueError"),
    "killed": line("validate", 61, epoch=3),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_older_than_a_new_beginning_is_left_out(
    end: str, tmp_path: Path
) -> None:
    first, second = pair(*EARLIER, ENDS[end], *ANEW, *epochs(1, at=DAY, loss=1.0))
    second[-3] = line("begin", DAY + 2, rank=1)  # It starts a little later.
    found = read(tmp_path, first, second)
    assert found.begin == START + DAY and found.seconds == 20
    assert [loss for _, _, loss in validations(found, SECONDS)] == [1.0]
    losses = [each.loss for one in found.learners.values() for each in one.lines]
    assert set(losses) == {None, 1.0}


def test_a_new_beginning_that_one_learner_has_told_of(tmp_path: Path) -> None:
    first, second = pair(*EARLIER, ENDS["finished"], *ANEW)
    found = read(tmp_path, first, second[: -len(ANEW)])
    assert found.begin == START + DAY
    assert found.at_epoch_end("valid_loss") is None
    assert list(found.learners) == [0]


@pytest.mark.parametrize("told", [True, False], ids=["later", "at once"])
@pytest.mark.parametrize("event", ["begin", "resume"])
def test_a_replacement_begins_nothing_anew(
    event: str, told: bool, tmp_path: Path
) -> None:
    first, second = pair(line("begin", 0), step(30, 15))
    first += [line("members", 60, members="0"), step(60, 75), step(90, 90)]
    second.append(line(event, 100, rank=1))
    first += [step(100, 105)] * told
    found = read(tmp_path, first, second)
    assert found.begin == START
    assert found.seconds == (105 if told else 100)
    assert [len(each.lines) for each in found.learners.values()] == [len(first), 3]


def test_an_epoch_that_is_repeated_has_its_last_loss(tmp_path: Path) -> None:
    lines = pair(
        line("begin", 0),
        *epochs(1, at=0, loss=3.0),
        line("resume", 50),
        *epochs(1, at=50, loss=2.0),
    )
    lines[0][-1] = line("epoch", 71, valid_loss=2.0)
    found = read(tmp_path, *lines)
    [(_, _, loss)] = validations(found, SECONDS)
    assert loss == 2.0
    # Learner 1 was the first to tell; the training was stopped from 20 to 50.
    assert found.elapsed(found.epoch_ends[0].time) == 40


STOPPED = {
    "stopped": [line("stop", 36, epoch=2, saved=True, step=50)],
    "killed": [step(60, 36, epoch=2)],
}


@pytest.mark.parametrize("end", STOPPED)
def test_a_stop_is_no_time_of_training(end: str, tmp_path: Path) -> None:
    lines = [
        line("begin", 0),
        step(100, 15),
        *epochs(1, at=0, loss=3.0),
        step(50, 35, epoch=2),
        *STOPPED[end],
        line("resume", 36_000, epoch=2),
        step(100, 36_015, epoch=2),
        line("epoch", 36_020, epoch=2, valid_loss=2.0),
    ]
    first, second = pair(*lines)
    second[-3] = line("resume", 36_003, epoch=2, rank=1)
    found = read(tmp_path, first, second)
    assert found.seconds == 56
    assert found.elapsed(START + 5000) == 36
    ends = [(time, loss) for time, _, loss in validations(found, SECONDS)]
    assert ends == [(20.0, 3.0), (56.0, 2.0)]


def test_utterances_count_of_learners_that_are_there_no_more(tmp_path: Path) -> None:
    ends = epochs(1, at=0, loss=3.0)
    lines = [line("begin", 0), step(100, 15), *ends, line("stop", 30, saved=True)]
    first, second = pair(*lines)
    for event in ("resume", "begin"):
        alone = {"learners": 1, "epoch": 2}
        first.append(line(event, DAY, **alone))
        first.append(step(100, DAY + 15, **alone))
        first.append(line("epoch", DAY + 20, valid_loss=2.0, **alone))
        found = read(tmp_path / event, first, second)
        assert list(found.learners) == [0]
        counted = [samples for _, samples, _ in validations(found, SECONDS)]
        assert counted == ([240, 360] if event == "resume" else [120])
        del first[-3:]
