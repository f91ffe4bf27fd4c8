"""Groups that take from one queue, in one process; some die, or are given up."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.distributed.queue_group import QueueGroup
from espnet_distopt.distributed.queue_left import Left
from espnet_distopt.errors import PeerLostError


class Driver:
    """Of one learner, who knows which others are dead, and may have lost its lease."""

    def __init__(
        self, store: Any, incarnations: Mapping[int, int] | None = None
    ) -> None:
        self.store, self.has_lease = store, True
        self.dead: dict[int, int] = {}
        self._incarnations = incarnations or {}

    def incarnation(self, rank: int) -> int:
        return self._incarnations.get(rank, 0)

    def asking(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def await_lease(self) -> None:
        if not self.has_lease:
            raise PeerLostError("given up")


def team(
    size: int, items: int, repeats: bool = False, ahead: int = 4
) -> tuple[list[Driver], list[QueueGroup]]:
    store = HashStore()
    drivers = [Driver(store) for _ in range(size)]
    groups = [
        QueueGroup(driver, g, (g,), size, items, "q/", ahead=ahead, repeats=repeats)  # type: ignore[arg-type]
        for g, driver in enumerate(drivers)
    ]
    return drivers, groups


def begin_all(groups: list[QueueGroup], *states: dict[str, Any]) -> None:
    """Open the queue; each group has its own state, or none has one."""
    lefts = [Left.saved(s, g.number) for s, g in zip(states, groups, strict=False)]
    lefts = lefts or [Left.everything(len(groups))] * len(groups)
    for group, left in zip(groups, lefts, strict=True):
        group.open(left)
    for group, left in zip(groups, lefts, strict=True):
        group.adopt(range(len(groups)), left)


def items_of(group: QueueGroup) -> Iterator[int]:
    """Read as a queue does, without a loader."""
    while True:
        for item in (*group.held, *group.own):
            if not group.begin(item):
                break
            yield item
        if not group.steal():
            return


def die(drivers: list[Driver], group: int) -> None:
    for driver in drivers:
        driver.dead = {**driver.dead, group: 0}


@pytest.mark.parametrize("repeats", [False, True])
def test_a_save_names_what_a_dead_group_had_taken(repeats: bool) -> None:
    """The run is resumed with a learner in its place that has another one's save."""
    drivers, groups = team(3, 24, repeats)
    begin_all(groups)
    trained = [next(items_of(groups[0])), next(items_of(groups[2]))]
    reading = items_of(groups[1])
    while groups[1].own:
        trained.append(next(reading))
    groups[1].steal()
    assert groups[1].held
    trained.append(next(items_of(groups[1])))
    assert groups[1].held  # it dies with these
    die(drivers, 1)
    states = [groups[0].state_dict(), groups[2].state_dict(), groups[2].state_dict()]
    assert states[0]["started"] == len(trained)
    _, again = team(3, 24, repeats)
    begin_all(again, *states)
    for group in again:
        trained += items_of(group)
    twice = [item for item in range(24) if trained.count(item) == 2]
    assert sorted(trained) == sorted([*range(24), *twice])
    assert len(twice) == int(repeats)
    assert [group.count_started() for group in again] == [24] * 3
    assert int(again[0]._store.get("q/started")) == 24


def test_what_a_group_held_in_a_save_is_for_the_others_if_it_does_not_come() -> None:
    _, groups = team(2, 12)
    begin_all(groups)
    trained = [next(items_of(groups[1]))]
    trained += [item for _, item in zip(range(6), items_of(groups[0]), strict=False)]
    groups[0].steal()
    held = list(groups[0].held)
    assert held
    states = [group.state_dict() for group in groups]
    drivers, (_, one) = team(2, 12)
    left = Left.saved(states[1], 1)
    one.open(left)
    die(drivers, 0)
    one.adopt([1], left)
    trained += items_of(one)
    assert sorted(trained) == list(range(12))
    assert one.started == 12  # what was begun before the save counts


def test_a_group_that_was_stopped_asks_nothing_until_it_has_a_lease() -> None:
    drivers, groups = team(2, 8)
    begin_all(groups)
    reading = items_of(groups[0])
    next(reading)
    before = [bytes(drivers[0].store.get(key)) for key in groups[0].keys]
    drivers[0].has_lease = False
    for ask in (lambda: groups[0].begin(2), groups[0].steal):
        with pytest.raises(PeerLostError):
            ask()
    assert [bytes(drivers[0].store.get(key)) for key in groups[0].keys] == before


def test_what_a_stopped_learner_took_after_it_was_replaced_is_for_all() -> None:
    """It had a lease when it looked, and its theft comes later than the replacement."""
    drivers, groups = team(3, 12, ahead=1)
    begin_all(groups)
    for item in (0, 3, 6, 9):
        assert groups[0].begin(item)
    new_driver = Driver(drivers[0].store, {0: 1})
    new = QueueGroup(new_driver, 0, (0,), 3, 12, "q/", ahead=1, repeats=False)  # type: ignore[arg-type]
    new.join()
    assert groups[0].steal()
    trained = [0, 3, 6, 9, *items_of(groups[1]), *items_of(groups[2])]
    trained += items_of(new)
    assert sorted(trained) == list(range(12))
    with pytest.raises(PeerLostError):
        groups[0].begin(groups[0].held[0])


class Died(Exception):
    """A learner dies."""


def test_an_item_counts_as_begun_if_its_taker_died_before_it_had_counted_it() -> None:
    _, groups = team(2, 8)
    begin_all(groups)

    def add(key: str, number: int) -> int:
        raise Died

    groups[0]._store = SimpleNamespace(add=add)  # type: ignore[assignment]
    with pytest.raises(Died):
        groups[0].begin(0)
    assert groups[1].count_started() == 1
