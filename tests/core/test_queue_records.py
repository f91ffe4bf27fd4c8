"""Records of a queue: every item is dealt once, in any order of steps and changes."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.core.queue_records import (
    Dead,
    Hold,
    Holder,
    Record,
    Records,
    Runs,
    count,
    from_lists,
    to_lists,
)
from espnet_distopt.errors import PeerLostError

NOBODY = Dead({}, repeats=True)


# One record


@pytest.mark.parametrize(
    "record",
    [
        Record(),
        Record((Hold(Holder(3, 0), (range(7, 20, 4), range(2, 3)), begun=True),)),
        Record((Hold(Holder(0, 2), (range(4, 9, 5),)), Hold(Holder(1, 0), ()))),
    ],
)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert Record.parse(record.text().encode()) == record
    assert Record.parse(record.text().encode()).text() == record.text()


def test_the_text_of_a_long_share_is_short() -> None:
    assert len(Record().put(Hold(Holder(0, 0), (range(0, 1 << 30, 4),))).text()) < 60


def test_each_holder_has_one_hold_and_none_if_it_is_empty() -> None:
    one, other = Holder(3, 0), Holder(3, 1)
    record = Record().put(Hold(one, (range(2),))).put(Hold(other, (range(4, 5),)))
    assert record.put(Hold(one, (range(1, 2),))).of(one).runs == (range(1, 2),)
    assert record.put(Hold(one, ())).holds == (Hold(other, (range(4, 5),)),)


def test_all_but_the_first_item_of_the_living_can_be_taken() -> None:
    """Whether they have begun with it or not; of the dead, all that is to be done."""
    hold = Hold(Holder(1, 2), (range(0, 4, 2), range(5, 6)))
    begun = Hold(hold.holder, hold.runs, begun=True)
    assert [NOBODY.spare(each) for each in (hold, begun)] == [2, 2]
    for repeats in (False, True):
        dead = Dead({1: 2}, repeats)
        assert [dead.spare(each) for each in (hold, begun)] == [3, 2 + repeats]
        assert Dead({1: 1}, repeats).spare(hold) == 2  # it was started again
    assert NOBODY.spare(Hold(hold.holder)) == 0


def test_runs_are_taken_from_the_end() -> None:
    """At most one run at a time, and a hold that has nothing left is dropped."""
    record = Record((Hold(Holder(0, 0), (range(0, 12, 2), range(3, 4))),))
    record = record.take(Holder(1, 0), 3, NOBODY) or record
    assert record.of(Holder(1, 0)) == Hold(Holder(1, 0), (range(3, 4),))
    record = record.take(Holder(2, 0), 3, NOBODY) or record
    assert record.of(Holder(2, 0)).runs == (range(6, 12, 2),)
    assert record.of(Holder(0, 0)).runs == (range(0, 6, 2),)
    record = record.take(Holder(3, 0), 8, Dead({0: 0}, repeats=False)) or record
    assert record.of(Holder(3, 0)).runs == (range(0, 6, 2),)
    assert len(record.holds) == 3


# Groups that take from each other, in one process


class Group:
    """A group that takes one item at each call.

    Args:
        store: what all share.
        number: the number of the group.
        left: what each group is to do.
        incarnation: how often it was started before.
        repeats: as for `Records`.
    """

    def __init__(
        self,
        store: Any,
        number: int,
        left: list[Runs],
        incarnation: int = 0,
        repeats: bool = False,
    ) -> None:
        self.holder = Holder(number, incarnation)
        self.records = Records(store, self.holder, len(left), "q/", repeats)
        self.held: list[int] = []
        self.trained: list[int] = []
        self.dead: dict[int, int] = {}

    def open(self, runs: Runs, started: int = 0) -> None:
        self.held = [item for run in runs for item in run]
        self.records.open(runs, started)

    def take(self) -> list[int]:
        run, _ = self.records.take(self.dead)
        self.held = list(run)
        return self.held

    def step(self) -> bool:
        """Train on one item; return whether there was one."""
        while self.held or self.take():
            if self.records.begin(self.held[0]):
                self.trained.append(self.held.pop(0))
                return True
            self.held = []
        return False


def shares(groups: int, items: int) -> list[Runs]:
    runs = (range(group, items, groups) for group in range(groups))
    return [(run,) if run else () for run in runs]


def opened(
    stores: Sequence[Any], left: list[Runs], started: int = 0, **more: Any
) -> list[Group]:
    """Groups that have begun with what is left for each."""
    found = [Group(store, g, left, **more) for g, store in enumerate(stores)]
    for group, runs in zip(found, left, strict=True):
        group.open(runs, started)
    return found


def team(groups: int, items: int, repeats: bool = False) -> list[Group]:
    return opened([HashStore()] * groups, shares(groups, items), repeats=repeats)


def replacement(of: Group, other: Group) -> Group:
    """A learner that joins in the place of a dead one."""
    group, incarnation = of.holder
    runs: list[Runs] = [()] * len(other.records._shares)
    new = Group(other.records._store, group, runs, incarnation + 1)
    new.dead = {group: incarnation}
    return new


def run(groups: list[Group], order: random.Random, steps: int | None = None) -> None:
    """Let groups step in a random order, some far more often than others."""
    speeds = {id(w): order.choice([1, 1, 1, 10, 100]) for w in groups}
    going = list(groups)
    while going and steps != 0:
        [group] = order.choices(going, [speeds[id(w)] for w in going])
        if not group.step():
            going.remove(group)
        steps = None if steps is None else steps - 1


def trained(*groups: Group) -> Counter[int]:
    return Counter(item for group in groups for item in group.trained)


@given(st.integers(1, 9), st.integers(0, 80), st.integers(0, 2**32))
def test_every_item_is_dealt_once(groups: int, items: int, seed: int) -> None:
    found = team(groups, items)
    run(found, random.Random(seed))
    assert trained(*found) == Counter(range(items))
    for number, group in enumerate(found):
        # nobody goes without, and the first is that of a static division
        assert group.trained[:1] == [number] or number >= items
    assert found[0].records.read() == 0


@given(st.integers(1, 6), st.integers(0, 60), st.integers(0, 2**32))
def test_stopped_and_resumed_every_item_is_dealt_once(
    groups: int, items: int, seed: int
) -> None:
    """What was read and not trained on is put back, and its group has it first."""
    order = random.Random(seed)
    first = team(groups, items)
    run(first, order, order.randrange(items + 1))
    back = [order.randrange(3) for _ in first]
    for group, number in zip(first, back, strict=True):
        own = len(group.trained)
        group.held[:0] = unread = group.trained[own - min(own, number) :]
        del group.trained[own - len(unread) :]
        group.records.put_back(unread)
    waiting = first[-1].records.read()
    assert waiting == items - trained(*first).total()
    left = [from_lists(to_lists(runs)) for runs in first[-1].records.left({})]
    store = HashStore()
    again = opened([store] * groups, left, items - waiting)
    for old, new in zip(first, again, strict=True):
        assert new.held[: len(old.held)] == old.held[: len(new.held)]
    run(again, order)
    assert trained(*first, *again) == Counter(range(items))
    assert int(store.add("q/started", 0)) == items


def test_equal_learners_train_on_their_own_shares_in_order() -> None:
    found = team(3, 12)
    for _ in range(4):
        assert all(group.step() for group in found)
    assert not any(group.step() for group in found)
    assert [g.trained for g in found] == [list(range(n, 12, 3)) for n in range(3)]


def test_nobody_waits_for_a_slow_learner() -> None:
    slow, *fast = found = team(4, 1240)
    going, rounds = set(fast), 0
    while going:
        # a step of the slow one takes as long as ten of the others
        slow.step()
        rounds += 1
        for _ in range(10):
            going -= {group for group in going if not group.step()}
    assert trained(*found) == Counter(range(1240))
    assert len(slow.trained) == 40  # 1240 / 31
    assert rounds == 41  # in the last one nobody finds any item
    assert {len(group.trained) for group in fast} == {400}


def test_what_a_slow_one_has_taken_is_taken_from_it() -> None:
    """It has taken much, and others have finished before it."""
    slow, other, third = team(3, 60)
    while other.held:
        assert other.step()
    while slow.held:
        assert slow.step()
    taken = len(slow.take())
    assert taken > 2 and slow.step()
    while other.step() or third.step():
        pass
    assert trained(slow, other, third) == Counter(range(60))
    assert not slow.step()


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(("groups", "items"), [(12, 48), (16, 160), (40, 81)])
def test_all_read_the_records_before_any_takes(groups: int, items: int) -> None:
    store, left = HashStore(), shares(groups, items)
    stores = [Early(store) for _ in left]
    slow, *fast = found = opened(stores, left)
    slow.step()
    going = list(fast)
    while going:
        for group, early in zip(found, stores, strict=True):
            early.read(group.records._shares)
        going = [group for group in going if group.step()]
    while slow.step():
        pass
    assert trained(*found) == Counter(range(items))


def test_of_two_that_take_at_the_same_moment_one_gets_the_items() -> None:
    store = HashStore()
    stores = [Early(store) for _ in range(3)]
    _, one, other = opened(stores, shares(3, 3))
    for group, early in zip((one, other), stores[1:], strict=True):
        group.dead = {0: 0}
        assert group.step()
        early.read(group.records._shares)
    assert one.take() == [0]
    assert other.take() == []


def test_a_queue_that_the_others_have_deleted_is_not_waited_for() -> None:
    [one] = team(1, 4)
    store = one.records._store
    store.delete_key("q/share/0")  # type: ignore[attr-defined]
    with pytest.raises(PeerLostError, match="the others have given this learner up"):
        one.step()


def test_a_step_costs_two_operations_whether_items_are_repeated_or_not() -> None:
    calls: list[str] = []

    class Counted:
        def __init__(self) -> None:
            self._store = HashStore()

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self._store, name)

    for repeats in (False, True):
        group = Group(Counted(), 0, shares(1, 8), repeats=repeats)
        group.open((range(8),))
        calls.clear()
        assert all(group.step() for _ in range(8))
        assert calls == ["compare_set", "add"] * 8


# Deaths


def rest(*groups: Group) -> list[int]:
    """What these groups train on when they go on to the end."""
    before = [len(group.trained) for group in groups]
    while any([group.step() for group in groups]):
        pass
    new = (g.trained[n:] for g, n in zip(groups, before, strict=True))
    return sorted(item for items in new for item in items)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_a_dead_group_holds_is_taken_as_a_whole(steps: int, repeats: bool) -> None:
    """What it was training on is done again if that is asked for."""
    dead, other = team(2, 8, repeats)
    assert all(dead.step() for _ in range(steps))
    other.dead = {0: 0}
    found = rest(other)
    again = dead.trained[-1:] if repeats else []
    assert Counter(found + dead.trained) == Counter([*range(8), *again])
    assert int(other.records._store.add("q/started", 0)) == 8
    assert other.records.read() == 0


def test_what_a_thief_has_taken_is_taken_from_it_when_it_dies_at_once() -> None:
    """It died after the very operation that took the items."""
    _, thief, other = team(3, 24)
    while thief.held:
        thief.step()
    taken = thief.take()
    other.dead = {1: 0, 0: 0}
    assert set(taken) <= set(rest(other))


def test_an_item_that_is_finished_is_not_repeated() -> None:
    """A group has finished all that it had when it looks for more."""
    dead, other = team(2, 2, repeats=True)
    assert dead.step() and not dead.step()
    other.dead = {0: 0}
    assert rest(other) == [1]


def test_an_item_that_was_taken_is_repeated_and_what_was_done_before_is_not() -> None:
    dead, other = team(2, 16, repeats=True)
    while dead.held:
        dead.step()
    assert dead.take() and dead.step()
    other.dead = {0: 0}
    assert Counter(rest(other) + dead.trained) == Counter(
        [*range(16), dead.trained[-1]]
    )


def test_who_was_given_up_does_not_begin_what_others_have_taken() -> None:
    stopped, other = team(2, 8)
    assert stopped.step()
    other.dead = {0: 0}
    assert rest(other) == [1, *range(2, 8)]
    assert stopped.held and not stopped.step()


def test_who_was_replaced_takes_nothing_twice() -> None:
    """What the one before takes after that is for all, the replacement included."""
    stopped, other = team(2, 16)
    assert stopped.step()
    new = replacement(stopped, other)
    assert new.step() and other.step()
    stopped.held = []
    assert stopped.take()
    assert other.step() and new.step()
    other.dead = {0: 0}
    rest(other, new)
    assert not stopped.step()
    assert trained(stopped, other, new) == Counter(range(16))


def test_the_items_of_a_replacement_are_not_those_of_a_dead_one() -> None:
    """Who takes does not know yet that the dead one was replaced."""
    dead, other = team(2, 4)
    new = replacement(dead, other)
    taken = new.take()
    other.dead = {0: 0}
    assert not set(rest(other)) & set(taken[:1])


def test_the_share_of_a_group_that_did_not_come_is_for_the_others() -> None:
    store, left = HashStore(), shares(2, 6)
    late, one = (Group(store, group, left) for group in range(2))
    one.open(left[1])
    one.records.adopt(0, left[0])
    one.dead = {0: 0}
    assert one.step()
    late.records.open(left[0], 0)  # It comes after the others have begun its share.
    assert rest(one) == [0, 2, 3, 4, 5]
    assert not late.step()


def test_an_item_counts_as_begun_if_its_holder_died_before_it_had_counted_it() -> None:
    one, other = team(2, 8)

    class Died(Exception):
        pass

    class Dying(Early):
        def add(self, key: str, number: int) -> int:
            raise Died

    one.records._store = Dying(one.records._store)
    with pytest.raises(Died):
        one.step()
    assert other.records.read() == 7


@pytest.mark.parametrize("repeats", [False, True])
def test_a_save_names_what_a_dead_group_had_taken(repeats: bool) -> None:
    first = team(3, 24, repeats)
    for group in first:
        assert group.step()
    while first[1].held:
        assert first[1].step()
    assert first[1].take() and first[1].step() and first[1].held
    dead = {1: 0}  # with what it holds
    waiting = first[0].records.read()
    left = first[0].records.left(dead)
    assert sum(map(count, left)) == waiting + repeats
    again = opened([HashStore()] * 3, left)
    rest(*again)
    twice = first[1].trained[-1:] if repeats else []
    assert trained(*first, *again) == Counter([*range(24), *twice])
