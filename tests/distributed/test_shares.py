"""Shares: every item is dealt exactly once, in any order of steps and operations."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.distributed.queue_left import Left, save
from espnet_distopt.distributed.share_record import First
from espnet_distopt.distributed.share_store import GivenUp
from espnet_distopt.distributed.shares import Shares


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

    def begin(self, left: Left) -> None:
        self.held, own = self.shares.first(left)
        self.own = list(own)
        self.shares.begin(left)

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
            assert self.shares.begin_held(self.trained[-1])
            return True
        return False


def workers(groups: int, items: int, ahead: int = 1) -> list[Worker]:
    store = HashStore()
    team = [Worker(store, g, groups, items, ahead) for g in range(groups)]
    for worker in team:
        worker.begin(Left.everything(groups))
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
    store = HashStore()
    again = [Worker(store, g, groups, items, ahead) for g in range(groups)]
    records = first[0].shares.records
    records.read()
    left = Left.saved({**save(records.seen, {}), "group": None}, 0)
    for old, new in zip(first, again, strict=True):
        new.begin(left)
        assert new.held == old.held
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
    """A store of one group, which may have read the records some time ago."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._read: list[bytes] | None = None

    def read(self, keys: list[str]) -> None:
        """Read what the next `multi_get` returns."""
        self._read = self._store.multi_get(keys)

    def multi_get(self, keys: list[str]) -> Any:
        read, self._read = self._read, None
        return self._store.multi_get(keys) if read is None else read

    def compare_set(self, key: str, expected: str, desired: str) -> Any:
        return self._store.compare_set(key, expected, desired)


@pytest.mark.parametrize(("groups", "items"), [(12, 48), (16, 48), (16, 160), (40, 81)])
@pytest.mark.parametrize("ahead", [1, 4])
def test_all_read_the_records_before_any_takes(
    groups: int, items: int, ahead: int
) -> None:
    store = HashStore()
    stores = [Early(store) for _ in range(groups)]
    team = [
        Worker(early, group, groups, items, ahead) for group, early in enumerate(stores)
    ]
    for worker in team:
        worker.begin(Left.everything(groups))
    slow, *fast = team
    slow.step()
    going = list(fast)
    while going:
        for worker, early in zip(team, stores, strict=True):
            early.read(worker.shares.records.keys)
        going = [worker for worker in going if worker.step()]
    while slow.step():
        pass
    assert trained(team) == Counter(range(items))


def begun(count: int, items: int, **options: Any) -> list[Shares]:
    """Groups that have written their records."""
    store = HashStore()
    team = [Shares(store, g, count, items, **options) for g in range(count)]
    for shares in team:
        shares.begin(Left.everything(count))
    return team


def again(shares: Shares, group: int, items: int, incarnation: int) -> Shares:
    """The replacement of a group's learner, on the same store."""
    store, groups = shares.records._store, len(shares.records.keys)
    return Shares(store, group, groups, items, incarnation=incarnation)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_replacement_goes_on_with_what_is_left_of_its_share(number: int) -> None:
    """The dead one had begun some of its items, and others have taken one."""
    dead, other = begun(2, 12)
    got = [*range(0, 2 * number, 2)]
    assert dead.begin_held(0) and all(dead.take() for _ in got[1:])
    assert all(other.take() for _ in range(5))
    got += other.steal(1)
    new = again(other, 0, 12, 1)
    left = new.join()
    got += [item for item in left if new.take()]
    assert not new.take()
    assert sorted(got) == list(range(0, 12, 2))


def test_an_item_that_others_took_from_a_dead_learner_is_not_repeated() -> None:
    _, other = begun(2, 4)
    assert other.take()
    assert list(other.steal(1)) == [2]
    new = again(other, 0, 4, 1)
    assert list(new.join()) == []
    assert not new.take()


def test_the_first_item_is_its_groups_once_and_cannot_be_stolen() -> None:
    left = Left.everything(2)
    first, second = begun(2, 3)
    assert first.first(left) == ([0], range(2, 3, 2))
    assert second.first(left) == ([1], range(0))
    assert list(second.steal(9)) == [2]
    assert not second.steal(9)


def test_the_share_of_a_group_that_has_not_begun_is_for_the_others() -> None:
    store, left = HashStore(), Left.everything(2)
    one = Shares(store, 0, 2, 6)
    one.begin(left)
    one.adopt([1], left)
    items = []
    while stolen := one.steal(1):
        items += stolen
        one.begin_held(stolen[0])
    assert sorted(items) == [2, 3, 4, 5]
    claimed = one.claim({1: 0}, 1)
    assert claimed is not None and claimed.items == (1,)


def test_what_is_stolen_is_claimed_although_the_thief_said_no_more() -> None:
    """It died after the very operation that took the items."""
    _, thief, other = begun(3, 24)
    assert list(thief.steal(2)) == [20, 23]
    assert other.begin_held(2)
    assert other.claim({}, 8) is None
    other.records.read()
    got = []
    while (claim := other.claim({1: 0}, 1)) is not None:
        got += claim.items
        assert other.begin_held(claim.items[0])
    assert sorted(got) == [1, 20, 23]


@pytest.mark.parametrize("claims", [1, 2])
def test_who_was_given_up_does_not_begin_what_others_have_claimed(claims: int) -> None:
    """The claimer may have begun, and so have undone what its claim has changed."""
    _, stopped, other = begun(3, 24)
    assert list(stopped.steal(2)) == [20, 23]
    assert other.begin_held(2)
    other.records.read()
    other.claim({1: 0}, 1)  # the first item of its share
    claim = other.claim({1: 0}, claims)
    assert claim is not None and claim.items == (20, 23)[:claims]
    assert all(other.begin_held(item) for item in claim.items)
    with pytest.raises(GivenUp, match="the others have given this learner up"):
        stopped.begin_held(20)


def test_who_was_replaced_takes_nothing_from_its_share() -> None:
    stopped, other = begun(2, 8)
    assert stopped.begin_held(0) and stopped.take()
    new = again(other, 0, 8, 1)
    assert list(new.join()) == [4, 6]
    names = [each.records._writer for each in (stopped, new, other)]
    assert len(set(names)) == 3  # so that no two of their changes are equal
    with pytest.raises(GivenUp):
        stopped.take()
    with pytest.raises(GivenUp):
        stopped.join()
    assert new.take() and new.take() and not new.take()


def test_who_comes_back_after_others_have_begun_its_share_does_not_begin_it() -> None:
    store, left = HashStore(), Left.everything(2)
    stopped, other = (Shares(store, group, 2, 6) for group in range(2))
    other.begin(left)
    other.adopt([0], left)
    other.records.read()
    assert other.claim({0: 0}, 1) is not None
    with pytest.raises(GivenUp):
        stopped.begin(left)


def test_the_items_of_a_replacement_are_not_claimed() -> None:
    """Who claims does not know yet that the dead one was replaced."""
    _, other = begun(2, 8)
    new = again(other, 0, 8, 1)
    new.join()
    mine = new.claim({0: 0}, 8)
    assert mine is not None and mine.items == (0,)
    other.records.read()
    assert other.claim({0: 0}, 8) is None
    assert other.claim({0: 1}, 8) is not None


def test_of_two_that_claim_at_the_same_moment_one_gets_the_items() -> None:
    _, one, other = begun(3, 3)
    one.records.read()
    other.records.read()
    assert one.claim({0: 0}, 1) is not None
    assert other.claim({0: 0}, 1) is None


def test_an_item_that_was_begun_is_claimed_only_if_it_is_repeated() -> None:
    dead, other = begun(2, 4)
    dead.begin_held(0)
    other.records.read()
    assert other.claim({0: 0}, 1) is None
    dead, other = begun(2, 4, repeats=True)
    assert dead.begin_held(0) and dead.take()
    other.records.read()
    claim = other.claim({0: 0}, 1)
    assert claim is not None
    assert (claim.items, claim.first) == ((2,), First.AGAIN)
    assert not other.begin_held(2)  # it was counted already


def test_an_item_that_is_finished_is_not_repeated() -> None:
    """A group has finished all that it had when it looks for more."""
    dead, other = begun(2, 2, repeats=True)
    dead.begin_held(0)
    assert not dead.steal(1)
    other.records.read()
    assert other.claim({0: 0}, 1) is None


def test_a_stolen_item_is_repeated_and_what_was_done_before_is_not() -> None:
    dead, other = begun(2, 8, repeats=True)
    dead.begin_held(0)
    assert dead.take() and dead.take() and dead.take() and not dead.take()
    assert list(dead.steal(2)) == [7]
    assert dead.begin_held(7)
    other.records.read()
    claim = other.claim({0: 0}, 8)
    assert claim is not None
    assert (claim.items, claim.first) == ((7,), First.AGAIN)
    assert other.claim({0: 0}, 8) is None


def test_a_step_of_which_others_know_nothing_costs_one_operation() -> None:
    """Whether items are repeated or not."""
    for repeats in (False, True):
        calls = []

        class Counted:
            def __init__(self) -> None:
                self._store: Any = HashStore()

            def compare_set(self, *texts: str, calls: list[Any] = calls) -> Any:
                calls.append(texts)
                return self._store.compare_set(*texts)

        shares = Shares(Counted(), 0, 1, 8, repeats=repeats)
        shares.begin(Left.everything(1))
        assert shares.begin_held(0) and all(shares.take() for _ in range(7))
        assert len(calls) == 1 + 8
