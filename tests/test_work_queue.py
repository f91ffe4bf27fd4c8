"""The work queue: every item is dealt exactly once, whatever the learners do."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import pytest
import torch.distributed as dist
from processes import launch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from espnet_distopt import Session, WorkQueue
from espnet_distopt.core.open_queues import position
from espnet_distopt.errors import InputError, PeerLostError
from tests.sessions import session, step


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


def epoch(name: str, run: Session, slow: int, items: int) -> tuple[list[int], int]:
    """Return the items that this learner has trained on, and the last step."""
    pace, queue = Pace(name, run, slow, items), WorkQueue(run, items)
    trained = []
    for item in queue.read(identity):
        trained.append(item)
        pace.step()
        step(run)
    run.finish()
    return trained, queue.step


def stop_and_go_on(run: Session, items: int) -> list[int]:
    """Stop an epoch after unequal numbers of items, and begin anew where it was."""
    rank, queue = run.learner.rank, WorkQueue(run, items)
    trained = []
    for item in queue.read(identity):
        trained.append(item)
        step(run)
        if len(trained) == 3 * rank + 1:
            break
    run.pause()
    state = queue.state_dict()
    run.mean(0.0)
    for item in WorkQueue(run, items, state).read(identity):
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
        run.algorithm.snapshot.publish()  # type: ignore[attr-defined]
        run.mean(0.0)
        for _ in WorkQueue(run, 15).read(identity):
            step(run)
        run.pause()
        means.append(run.mean(float(run.learner.params.mean())))
    return means


def deal_to_learners() -> list[Any]:
    with session("adpsgd") as run:
        slow = [epoch(f"e{number}", run, 2, 210) for number in (0, 1)]
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
        return [epoch(f"e{number}", run, 2, 110) for number in (0, 1)]


def test_the_learners_of_a_node_get_the_same_items() -> None:
    results = launch(4, deal_to_nodes)
    assert results[0] == results[1]
    assert results[2] == results[3]
    for number in range(2):
        trained = [results[leader][number][0] for leader in (0, 2)]
        assert Counter(chain(*trained)) == Counter(range(110))
        assert len(trained[1]) <= 110 // 11 + 1


def deal_in_lockstep() -> tuple[list[int], list[int]]:
    with session("allreduce") as run:
        trained = []
        queue = WorkQueue(run, 5)
        for item in queue.read(identity):
            trained.append(item)
            step(run)
        run.finish()
    return trained, list(range(7))[queue.own]


def test_learners_that_step_together_get_all_items_and_a_part_of_each() -> None:
    all_items = [0, 1, 2, 3, 4]
    assert launch(2, deal_in_lockstep) == [
        (all_items, [0, 2, 4, 6]),
        (all_items, [1, 3, 5]),
    ]


@pytest.mark.parametrize("items", [-1, 2**30 + 1, 2.0, [[0, 1], [2]]])
def test_impossible_queues_are_refused(items: Any) -> None:
    numbers = (
        r"the number of its items \(0 to 1073741824\), such as len\(batches\), not "
    )
    with pytest.raises(InputError, match=numbers + re.escape(str(items))):
        WorkQueue(session("adpsgd"), items)


def test_who_reads_on_after_a_break_gets_what_is_left() -> None:
    queue = WorkQueue(session("adpsgd"), 5)
    first = list(islice(queue.read(identity), 2))
    assert [*first, *queue.read(identity)] == [0, 1, 2, 3, 4]


def test_what_is_put_back_is_read_again_and_saved() -> None:
    run = session("adpsgd")
    queue = WorkQueue(run, 5)
    read = list(islice(queue.read(identity), 3))
    queue.put_back(read[1:])
    state = queue.state_dict()
    assert list(queue.read(identity)) == [1, 2, 3, 4]
    again = WorkQueue(run, 5, state)
    assert again.started == 1
    assert list(again.read(identity)) == [1, 2, 3, 4]


def test_a_learner_that_was_stopped_for_long_asks_nothing_before_its_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = session("adpsgd")
    queue = WorkQueue(run, 2)
    items = queue.read(identity)
    next(items)

    def given_up() -> None:
        raise PeerLostError("given up")

    monkeypatch.setattr(run.driver, "await_lease", given_up)
    for ask in (lambda: next(items), lambda: queue.put_back([0]), queue._take):
        with pytest.raises(PeerLostError):
            ask()
    assert queue.count_started() == 1


def test_a_learner_that_joins_a_queue_of_other_items_is_refused_alone() -> None:
    run = session("adpsgd")
    queue = WorkQueue(run, 9)
    place = position(run.driver)
    place.opened, place.joined = 0, 0
    with pytest.raises(InputError, match=r"opened a work queue of 8 items, .* of 9:"):
        WorkQueue(run, 8)
    assert list(queue.read(identity)) == list(range(9))


@pytest.mark.parametrize(
    ("given", "message"),
    [(2, r"has yielded 2 of 3 loaded items"), (4, r"more than 3 loaded items")],
)
def test_a_loader_yields_one_for_each_number(given: int, message: str) -> None:
    """As one that skips bad files, or makes batches of its own, does not."""
    queue = WorkQueue(session("adpsgd"), 3)
    with pytest.raises(InputError, match=message):
        list(queue.read(lambda items: [0] * given))
