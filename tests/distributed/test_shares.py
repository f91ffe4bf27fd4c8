"""Shares: every item is dealt exactly once, in any order of steps and operations."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.distributed.shares import MOST_ITEMS, Shares


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
        self.group = group

    def begin(self, taken: list[int]) -> None:
        self.own = list(self.shares.begin(taken))
        self.held = list(self.shares.first(self.group, taken))

    def step(self) -> bool:
        """Train on one item; returns whether there was one."""
        if not self.held and self.own:
            if self.shares.take():
                self.trained.append(self.own.pop(0))
                return True
            self.own = []
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


class Early:
    """A store of one group, which may have read the counters some time ago."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._read: list[bytes] | None = None

    def read(self, keys: list[str]) -> None:
        """Read what the next `multi_get` returns."""
        self._read = self._store.multi_get(keys)

    def multi_get(self, keys: list[str]) -> Any:
        read, self._read = self._read, None
        return self._store.multi_get(keys) if read is None else read

    def add(self, key: str, number: int) -> Any:
        return self._store.add(key, number)

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)


@pytest.mark.parametrize(("groups", "items"), [(12, 48), (16, 48), (16, 160), (40, 81)])
@pytest.mark.parametrize("ahead", [1, 4])
def test_all_read_the_counters_before_any_takes(
    groups: int, items: int, ahead: int
) -> None:
    store = HashStore()
    stores = [Early(store) for _ in range(groups)]
    team = [
        Worker(early, group, groups, items, ahead) for group, early in enumerate(stores)
    ]
    for worker in team:
        worker.begin([0] * groups)
    slow, *fast = team
    slow.step()
    going = list(fast)
    while going:
        for worker, early in zip(team, stores, strict=True):
            early.read(worker.shares.keys)
        going = [worker for worker in going if worker.step()]
    while slow.step():
        pass
    assert trained(team) == Counter(range(items))


def test_the_counters_of_the_largest_epoch_fit_into_a_store() -> None:
    """All take as much as they may from one share, most of them when it is empty."""
    groups, store = 256, HashStore()
    stores = [Early(store) for _ in range(groups)]
    team = [Shares(s, g, groups, MOST_ITEMS) for g, s in enumerate(stores)]
    for shares in team:
        shares.begin([0] * groups)
    for shares, early in zip(team[1:], stores[1:], strict=True):
        early.read(shares.keys)
    share = range(0, MOST_ITEMS, groups)
    half = (len(share) - 1) // 2  # the first item is group 0's
    first, second, third, *others = (shares.steal(MOST_ITEMS) for shares in team[1:])
    assert (first, second) == (share[-half:], share[-2 * half : -half])
    assert third == share[1 : -2 * half]
    assert all(got and got[0] % groups for got in others)
    assert divmod(team[0].taken()[0], 1 << 32) == (255 * half, 1)
    assert 255 * half < 1 << 31


def test_counters_beyond_a_share_say_that_nothing_is_left() -> None:
    store = HashStore()
    first, second = (Shares(store, g, 2, 8) for g in range(2))
    first.begin([5 + (9 << 32), 0])
    second.begin([0, 5 + (9 << 32)])
    assert not first.steal(4) and not second.steal(4)
    assert not first.take() and not second.take()
    assert list(first.begin(first.taken())) == []


@pytest.mark.parametrize("begun", [1, 2, 4])
def test_a_replacement_goes_on_with_what_is_left_of_its_share(begun: int) -> None:
    """The dead one had begun some of its items, and others have taken one.

    It had the first one without taking it.
    """
    store = HashStore()
    dead, other, new = (Shares(store, group, 2, 12) for group in (0, 1, 0))
    for each in (dead, other):
        each.begin([0, 0])
    got = [*range(0, 2 * begun, 2)]
    assert all(dead.take() for _ in got[1:])
    assert all(other.take() for _ in range(5))
    got += other.steal(1)
    left = new.join()
    got += [item for item in left if new.take()]
    assert not new.take()
    assert sorted(got) == list(range(0, 12, 2))


def test_an_item_that_others_took_from_a_dead_learner_is_not_repeated() -> None:
    store = HashStore()
    dead, other, new = (Shares(store, group, 2, 4) for group in (0, 1, 0))
    for each in (dead, other):
        each.begin([0, 0])
    assert other.take()
    assert list(other.steal(1)) == [2]
    assert list(new.join()) == []
    assert not new.take()


def test_the_first_item_is_its_groups_once_and_cannot_be_stolen() -> None:
    store = HashStore()
    first, second = team = [Shares(store, group, 2, 3) for group in (0, 1)]
    zeros = [0, 0]
    assert [list(each.begin(zeros)) for each in team] == [[2], []]
    assert [list(first.first(group, zeros)) for group in (0, 1)] == [[0], [1]]
    assert list(second.steal(9)) == [2]
    assert not second.steal(9)
    taken = first.taken()
    assert not first.first(0, taken) and not first.first(1, taken)


def test_the_share_of_a_group_that_has_not_begun_is_for_the_others() -> None:
    store = HashStore()
    one, _ = (Shares(store, group, 2, 6) for group in (0, 1))
    zeros = [0, 0]
    one.begin(zeros)
    one.adopt([1], zeros)
    assert sorted(item for _ in range(4) for item in one.steal(1)) == [2, 3, 4, 5]
    assert list(one.first(1, zeros)) == [1]
