"""The work queue: every item is dealt exactly once, whatever the learners do."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from processes import launch
from torch import nn
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.optim import SGD

from espnet_distopt import Session, WorkQueue
from espnet_distopt.drivers.liveness import PeerLostError
from espnet_distopt.drivers.process_group import ProcessGroupDriver
from espnet_distopt.errors import InputError
from espnet_distopt.shares import Shares


class Worker:
    """A group in one process, which takes one item at each call."""

    def __init__(
        self, store: Any, group: int, groups: int, items: int, ahead: int
    ) -> None:
        self.shares = Shares(store, group, groups, items)
        self.ahead = ahead
        self.own: list[int] = []
        self.held: list[int] = []
        self.trained: list[int] = []
        self.stole = False

    def begin(self, taken: list[int]) -> None:
        self.own = list(self.shares.begin(taken))

    def step(self) -> bool:
        """Train on one item; returns whether there was one."""
        if not self.stole and self.own and self.shares.take():
            self.trained.append(self.own.pop(0))
            return True
        self.stole = True
        if not self.held:
            self.held = list(self.shares.steal(self.ahead))
        if self.held:
            self.trained.append(self.held.pop(0))
            return True
        return False


def workers(groups: int, items: int, ahead: int = 1) -> list[Worker]:
    store = HashStore()
    team = [Worker(store, g, groups, items, ahead) for g in range(groups)]
    for worker in team:
        worker.begin([0] * groups)
    return team


def run(team: list[Worker], order: random.Random, steps: int | None = None) -> None:
    """Let workers step in a random order, some far more often than others."""
    speeds = {id(w): order.choice([1, 1, 1, 10, 100]) for w in team}
    going = list(team)
    while going and steps != 0:
        weights = [speeds[id(w)] for w in going]
        [worker] = order.choices(going, weights)
        if not worker.step():
            going.remove(worker)
        steps = None if steps is None else steps - 1


def trained(*teams: list[Worker]) -> Counter[int]:
    return Counter(item for team in teams for w in team for item in w.trained)


@given(st.integers(1, 9), st.integers(0, 80), st.integers(1, 8), st.integers(0, 2**32))
def test_every_item_is_dealt_once(
    groups: int, items: int, ahead: int, seed: int
) -> None:
    team = workers(groups, items, ahead)
    run(team, random.Random(seed))
    assert trained(team) == Counter(range(items))
    for group, worker in enumerate(team):
        # nobody goes without, and the first is that of a static division
        assert worker.trained[:1] == ([group] if group < items else worker.trained[:1])


@given(st.integers(1, 6), st.integers(0, 60), st.integers(1, 8), st.integers(0, 2**32))
def test_stopped_and_resumed_every_item_is_dealt_once(
    groups: int, items: int, ahead: int, seed: int
) -> None:
    order = random.Random(seed)
    first = workers(groups, items, ahead)
    run(first, order, order.randrange(items + 1))
    again = workers(groups, items, ahead)
    taken = first[0].shares.taken()
    for old, new in zip(first, again, strict=True):
        new.begin(taken)
        new.held = old.held
        new.stole = bool(old.held)
    run(again, order)
    assert trained(first, again) == Counter(range(items))


def test_equal_learners_train_on_their_own_shares_in_order() -> None:
    team = workers(3, 12)
    for _ in range(4):
        assert all(worker.step() for worker in team)
    assert not any(worker.step() for worker in team)
    assert [worker.trained for worker in team] == [
        list(range(g, 12, 3)) for g in range(3)
    ]


@pytest.mark.parametrize("ahead", [1, 8])
def test_nobody_waits_for_a_slow_learner(ahead: int) -> None:
    slow, *fast = team = workers(4, 1240, ahead)
    going = set(fast)
    while going:
        # a step of the slow one takes as long as ten of the others
        slow.step()
        for _ in range(10):
            going -= {worker for worker in going if not worker.step()}
    assert trained(team) == Counter(range(1240))
    assert len(slow.trained) in (40, 41)  # 1240 / 31
    shares = sorted(len(worker.trained) for worker in fast)
    assert shares[0] >= 400 - ahead
    assert shares[-1] <= 400 + ahead


def session(algorithm: str, **options: Any) -> Session:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    driver = ProcessGroupDriver(silence=3)
    return Session(model, optimizer, algorithm, driver, **options)


def identity(items: Sequence[int]) -> Sequence[int]:
    return items


def test_one_learner_gets_all_in_their_order_and_may_stop() -> None:
    run = session("adpsgd")
    queue = WorkQueue(run, 5)
    items = queue.read(identity)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    assert (queue.step, queue.steps) == (3, 5)
    again = WorkQueue(run, 5, state=queue.state_dict())
    assert again.step == 3
    assert list(again.read(identity)) == [3, 4]
    assert list(again.read(identity)) == []
    with pytest.raises(InputError, match=r"of 5 items for 1 groups .* not of 6 for 1"):
        WorkQueue(run, 6, state=queue.state_dict())


def step(run: Session) -> None:
    run.learner.optimizer.zero_grad()
    run._model(torch.ones(1, 2)).sum().backward()
    run.learner.optimizer.step()
    run.step()


class Pace:
    """Keeps the last learners at a tenth of the others' speed, whatever these do."""

    def __init__(self, name: str, run: Session, slow: int, items: int) -> None:
        ranks = run.algorithm.lockstep(run.learner)
        self.leads = run.learner.rank == ranks[0]
        groups = run.learner.size // len(ranks)
        self.slow = slow <= run.learner.rank
        self.per_step, self.items = 10 * (groups - 1) + 1, items
        self.store = PrefixStore(name, dist.distributed_c10d._get_default_store())
        self.own = 0

    def step(self) -> None:
        """Count an item; a slow learner waits until the others have made theirs."""
        self.own += 1
        if self.leads:
            self.store.add("made", 1)
        enough = min(self.items, self.own * self.per_step)
        while self.slow and self.store.add("made", 0) < enough:
            time.sleep(0.001)


def epoch(
    name: str, run: Session, slow: int, items: int, **options: Any
) -> tuple[list[int], int]:
    """Return the items that this learner has trained on, and the last step."""
    pace, queue = Pace(name, run, slow, items), WorkQueue(run, items, **options)
    trained = []
    for item in queue.read(identity):
        trained.append(item)
        pace.step()
        step(run)
    run.finish()
    return trained, queue.step


def stop_and_go_on(run: Session, items: int) -> list[int]:
    """Stop an epoch after unequal numbers of items, and begin anew where it was."""
    rank, queue = run.learner.rank, WorkQueue(run, items, ahead=3)
    trained = []
    for item in queue.read(identity):
        trained.append(item)
        step(run)
        if len(trained) == 3 * rank + 1:
            break
    run.pause()
    state = queue.state_dict()
    run.mean(0.0)
    for item in WorkQueue(run, items, 3, state).read(identity):
        trained.append(item)
        step(run)
    run.finish()
    return trained


def means_after_stops(run: Session, stops: int) -> list[float]:
    """Train at a rate of zero; return the mean parameter after each stop."""
    run.learner.optimizer.param_groups[0]["lr"] = 0.0
    means = []
    for _ in range(stops):
        run.learner.params.fill_(run.learner.rank)
        run.algorithm.published.publish()  # type: ignore[attr-defined]
        run.mean(0.0)
        for _ in WorkQueue(run, 15).read(identity):
            step(run)
        run.pause()
        means.append(run.mean(float(run.learner.params.mean())))
    return means


def deal_to_learners() -> list[Any]:
    with session("adpsgd") as run:
        slow = [epoch(f"e{ahead}", run, 2, 210, ahead=ahead) for ahead in (1, 4)]
        return [*slow, stop_and_go_on(run, 30), means_after_stops(run, 10)]


def test_learners_deal_themselves_every_item_once() -> None:
    results = launch(3, deal_to_learners)
    for number in range(2):
        trained = [r[number][0] for r in results]
        assert Counter(chain(*trained)) == Counter(range(210))
        assert len(trained[2]) <= 210 // 21 + 1
        # who began the last item knows of all; the slow one of those it waited for
        assert max(r[number][1] for r in results) == 70
        assert results[2][number][1] > 7 * (len(trained[2]) - 1)
    assert Counter(chain(*(r[2] for r in results))) == Counter(range(30))
    assert results[0][3] == pytest.approx([1.0] * 10, abs=1e-6)


def deal_to_nodes() -> list[Any]:
    with session("hadpsgd", per_node=2) as run:
        return [epoch(f"e{ahead}", run, 2, 110, ahead=ahead) for ahead in (1, 4)]


def test_the_learners_of_a_node_get_the_same_items() -> None:
    results = launch(4, deal_to_nodes)
    assert results[0] == results[1]
    assert results[2] == results[3]
    for number in range(2):
        trained = [results[leader][number][0] for leader in (0, 2)]
        assert Counter(chain(*trained)) == Counter(range(110))
        assert len(trained[1]) <= 110 // 11 + 1


def deal_in_lockstep() -> list[int]:
    with session("allreduce") as run:
        trained = []
        for item in WorkQueue(run, 5).read(identity):
            trained.append(item)
            step(run)
        run.finish()
    return trained


def test_learners_that_step_together_all_get_everything() -> None:
    assert launch(2, deal_in_lockstep) == [[0, 1, 2, 3, 4]] * 2


def die_in_the_middle() -> str:
    run = session("adpsgd")
    try:
        for number, _ in enumerate(WorkQueue(run, 10**6).read(identity)):
            if run.learner.rank == 1 and number == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            step(run)
    except PeerLostError as error:
        return str(error)
    return "nobody missed it"


def test_a_learner_that_dies_is_named() -> None:
    assert "learner 1" in launch(2, die_in_the_middle, dying={1})[0]
