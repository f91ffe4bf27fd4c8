"""ESPnet's batches: begun anywhere, from the work queue, every piece once."""

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from espnet2.schedulers.warmup_lr import WarmupLR
from espnet2.tasks.abs_task import IteratorOptions
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.utils.data import DataLoader

from espnet_distopt.core.membership import Members
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.batches import (
    EpochUtterances,
    QueuedBatches,
    QueueSchedule,
    UncutBatches,
    divides_batches,
    whole_batches,
    without_first,
)
from espnet_distopt.espnet.training.saving import load_learner
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.session import Session
from tests.espnet.toy import arguments, write_toy_data
from tests.espnet.training.learners import before, trained
from tests.espnet.training.test_stop import RecordBatches, read_batches


@dataclass(frozen=True)
class SlowDown:
    """An injection: learner 1 makes one step while the other has ten batches."""

    folder: Path
    batches: int

    def __call__(self, rank: int) -> None:
        # as outside of the tests: processes that read data have all imported already
        multiprocessing.set_start_method("fork", force=True)

        def wait(session: Session) -> None:
            enough = min(self.batches, 11 * (session.learner.steps + 1))
            while len(read_batches(self.folder)) < enough:
                time.sleep(0.01)

        if rank == 1:
            before(Session, "step", wait)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_does_not_wait_for_a_slow_learner(
    workers: int, tmp_path: Path
) -> None:
    # batches of two utterances: one each
    write_toy_data(tmp_path, train=48)
    exp = tmp_path / "exp"
    more = ["--distopt", "adpsgd", "--max_epoch", "1", "--scheduler", "warmuplr"]
    more += ["--batch_size", "2", "--num_workers", str(workers)]
    slow = RecordBatches(tmp_path, SlowDown(tmp_path, 48))
    trained(arguments(tmp_path, exp, *more), 2, tmp_path, slow)
    batches = read_batches(tmp_path)
    assert len(batches) == 48
    assert set(batches.values()) == {1}
    late = (tmp_path / "batches.1").read_text().splitlines()
    assert 1 <= len(late) <= 48 // 11 + 1

    # Unequal numbers of steps, and the same place in the schedule.
    states = [load_learner(exp, rank, 1) for rank in (0, 1)]
    steps = [state["session"]["learner"]["steps"] for state in states if state]
    assert steps == [48 - len(late), len(late)]
    assert [s["scheduler"]["last_epoch"] for s in states if s] == [24, 24]
    experiment = Experiment.read(exp)
    assert experiment is not None
    fast, slow_one = (experiment.learners[rank].last for rank in (0, 1))
    assert fast.steps == slow_one.steps == 24
    assert 22 <= fast.step <= 24
    # Where the slow one's last step was depends on when the fast one took the rest.
    assert 0 < slow_one.step <= 24
    assert sum(e.last.epoch_samples for e in experiment.learners.values()) == 48


def loader(batches: list[list[str]]) -> DataLoader[Any]:
    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> str:
            return name

    return DataLoader(Names(), batch_sampler=batches, collate_fn=list)  # type: ignore[arg-type]


BATCHES = [list("abcdefgh"), list("ijklm"), list("nopqrs")]


class Driver:
    """The driver of a learner that need not ask others anything."""

    def __init__(self) -> None:
        self.store = HashStore()
        self.members = Members.everybody(4)

    def incarnation(self, rank: int) -> int:
        return 0

    def asking(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def await_lease(self) -> None:
        """Its heartbeat is never late."""


class Group:
    """A session of learner `rank` of four, whose nodes have two."""

    def __init__(self, rank: int) -> None:
        self.learner = SimpleNamespace(rank=rank, size=4)
        first = rank - rank % 2
        self.algorithm = SimpleNamespace(lockstep=lambda _: (first, first + 1))
        self.driver, self.repeat_begun = Driver(), False
        self.begin_queue = lambda queue: None
        self.barrier = lambda: Members(1, (rank,))  # The others do not come.


def test_pieces_are_those_of_stock_sharding() -> None:
    for rank in range(4):
        session: Any = Group(rank)
        epoch = EpochUtterances(loader(BATCHES), 4)
        queued = QueuedBatches(epoch, session, None, 1)
        node, place = divmod(rank, 2)
        items = [queued._piece(item) for item in range(6)]
        pieces = list(epoch.load(items))
        assert pieces[node::2] == [b[rank::4] for b in BATCHES]
        other = 2 * (1 - node) + place
        assert pieces[1 - node :: 2] == [b[other::4] for b in BATCHES]
        assert len(queued) == 3


def test_a_loader_reads_what_it_is_given_again_and_again() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    session = Session(model, optimizer, "adpsgd")
    queued = QueuedBatches(EpochUtterances(loader(BATCHES), 1), session, None, 1)
    assert [list(batch) for batch in queued] == BATCHES
    left = {"items": 3, "left": [[[0, 1, 1], [2, 3, 1]]]}
    epoch, state = EpochUtterances(loader(BATCHES), 1), {"queue": left, "scheduled": 0}
    queued = QueuedBatches(epoch, session, None, 1, state)
    assert [list(batch) for batch in queued] == [BATCHES[0], BATCHES[2]]


def test_batches_with_fewer_utterances_than_learners_are_refused() -> None:
    stock: Any = SimpleNamespace(sampler=BATCHES)
    UncutBatches(stock, 5)
    with pytest.raises(InputError, match="a batch of 5 utterances for 6 learners"):
        UncutBatches(stock, 6)


def test_the_living_divide_batches_of_validation() -> None:
    epoch = EpochUtterances(loader(BATCHES), 4)
    for place in range(3):
        assert list(epoch.share(place, 3)) == [batch[place::3] for batch in BATCHES]
    assert divides_batches(*options(), "valid")
    assert not divides_batches(*options(distopt=None), "valid")


def options(**changes: Any) -> tuple[argparse.Namespace, IteratorOptions]:
    """Return options under which a training takes its batches from the queue."""
    known: dict[str, Any] = {
        "distopt": "adpsgd",
        "multiple_iterator": False,
        "shuffle_within_batch": False,
        "min_batch_size": 1,
    }
    empty = dict.fromkeys(IteratorOptions.__dataclass_fields__)
    distributed = changes.pop("distributed", True)
    args = argparse.Namespace(**{**known, **changes})
    return args, IteratorOptions(**{**empty, "distributed": distributed})


STATIC: list[dict[str, Any]] = [
    {"distopt": None},
    {"distopt": "dpsgd"},
    {"distributed": False},
    {"multiple_iterator": True},
    {"shuffle_within_batch": True},
]


def test_whose_batches_the_learners_divide_themselves() -> None:
    for algorithm in ("adpsgd", "hadpsgd", "bmuf", "adasum"):
        assert divides_batches(*options(distopt=algorithm), "train")
        assert divides_batches(*options(distopt=algorithm), "valid")
    assert not divides_batches(*options(), "plot_att")
    for changes in STATIC:
        assert not divides_batches(*options(**changes), "train"), changes


def test_batches_are_made_for_all_learners() -> None:
    args, iter_options = options()
    whole, uncut = whole_batches(args, iter_options, 8)
    assert (whole.min_batch_size, args.min_batch_size) == (8, 1)
    assert (uncut.distributed, iter_options.distributed) == (False, True)


def test_other_iterators_keep_their_shards_and_say_so(tmp_path: Path) -> None:
    write_toy_data(tmp_path)
    more = ["--distopt", "adpsgd", "--shuffle_within_batch", "true"]
    options = arguments(tmp_path, tmp_path / "exp", *more, "--max_epoch", "1")
    said = trained(options, 2, tmp_path, RecordBatches(tmp_path))
    assert said.count("epochs end with the slowest learner") == 1
    assert set(read_batches(tmp_path).values()) == {1}
    assert len((tmp_path / "batches.0").read_text().splitlines()) == 12


def schedule(accum_grad: int = 1, done: int = 0) -> tuple[QueueSchedule, Any, Any]:
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = WarmupLR(optimizer, warmup_steps=100)
    optimizer.step()
    queue: Any = SimpleNamespace(step=0, steps=50)
    return QueueSchedule(scheduler, queue, accum_grad, done), queue, scheduler


def test_a_schedule_follows_all_learners_and_never_goes_back() -> None:
    shared, queue, scheduler = schedule()
    for at, expected in ((1, 1), (2, 2), (12, 12), (11, 12), (13, 13)):
        queue.step = at
        shared.step()
        assert scheduler.last_epoch == expected
    rate = scheduler.get_last_lr()[0]
    assert rate == pytest.approx(100**0.5 * 14 * 100**-1.5)
    shared.finish()
    assert scheduler.last_epoch == shared.done == 50


def test_a_schedule_counts_accumulated_batches_as_one_step() -> None:
    shared, queue, scheduler = schedule(accum_grad=4, done=2)
    for at, expected in ((11, 0), (12, 1), (19, 2)):
        queue.step = at
        shared.step()
        assert scheduler.last_epoch == expected
    shared.finish()
    assert scheduler.last_epoch == 12 - 2  # the last two batches are no step


def test_skipped_batches_are_read_before_the_random_numbers_are_restored() -> None:
    """ESPnet's multiple_iterator is a generator, whose data loaders draw numbers."""
    read: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(5):
            read.append(number)
            yield number

    rest = iter(without_first(batches(), 3))
    assert read == [0, 1, 2]
    assert list(rest) == [3, 4]
    assert list(without_first(batches(), 7)) == []
