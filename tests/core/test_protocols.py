"""Deaths, joins and ends of epochs that change the members at the same time."""

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.core.membership import Members
from espnet_distopt.core.protocols import (
    MEMBERS,
    Membership,
    arrival,
    decide_meeting,
    end_epoch,
    end_gossip,
    gossip_over,
    met,
    parse_met,
    read_members,
    retire,
)
from tests.virtual_threads import VirtualThreads

SCHEDULES = int(os.environ.get("DISTOPT_SCHEDULES", "1000"))


@pytest.fixture
def store() -> Any:
    return HashStore()


def test_a_replacement_is_a_member_once_it_has_joined(store: Any) -> None:
    other, first = (Membership(store, rank, 3) for rank in (0, 2))
    other.remove(store, [2], "it has died")
    new = Membership(store, 2, 3, incarnation=1)
    assert (new.joining, new.excluded) == (True, False)
    assert new.join(store, epoch=1)
    assert new.members.ranks == (0, 1, 2)
    assert (new.joining, new.excluded) == (False, False)
    for each in (other, first):
        assert each.read(store.get(MEMBERS))
        assert each.members == new.members
    assert first.excluded
    assert other.incarnation(2) == 1


def test_a_replacement_takes_the_place_of_one_that_nobody_has_missed(
    store: Any,
) -> None:
    first, new = Membership(store, 1, 2), Membership(store, 1, 2, incarnation=1)
    assert new.join(store, epoch=1)
    first.read(store.get(MEMBERS))
    assert first.excluded
    assert read_members(store).living == {0: 0, 1: 1}


def test_a_death_that_is_noticed_late_is_not_that_of_the_replacement(
    store: Any,
) -> None:
    late = Membership(store, 0, 3)
    Membership(store, 1, 3).remove(store, [2], "it has died")
    new = Membership(store, 2, 3, incarnation=1)
    assert new.join(store, epoch=1)
    late.remove(store, [2], "it is silent")
    assert read_members(store).living == {0: 0, 1: 0, 2: 1}
    late.remove(store, [2], "now the replacement has died")
    assert read_members(store).living == {0: 0, 1: 0}


def test_a_replacement_learns_of_all_who_have_died_before_it(store: Any) -> None:
    """Whoever holds items of the work queue is known by rank and incarnation."""
    other = Membership(store, 0, 3)
    other.remove(store, [2], "it has died")
    again = Membership(store, 2, 3, incarnation=1)
    assert again.join(store, epoch=1)
    other.read(store.get(MEMBERS))
    other.remove(store, [1, 2], "both have died")
    new = Membership(store, 1, 3, incarnation=1)
    new.learn(other.incarnations)
    assert new.join(store, epoch=1)
    other.read(store.get(MEMBERS))
    assert new.dead == other.dead == {2: 1}
    assert new.incarnation(1) == 1


def test_what_a_replacement_learns_is_no_news_of_the_living(store: Any) -> None:
    other = Membership(store, 0, 3)
    before = other.incarnations
    other.remove(store, [2], "it has died")
    again = Membership(store, 2, 3, incarnation=1)
    assert again.join(store, epoch=1)
    new = Membership(store, 1, 3, incarnation=1)
    new.learn(before)
    assert new.incarnation(2) == 1
    assert new.dead == {}


def test_an_older_value_is_no_news(store: Any) -> None:
    one = Membership(store, 0, 3)
    older = store.get(MEMBERS)
    one.remove(store, [2], "it has died")
    assert not one.read(older)
    assert one.members == Members(1, (0, 1))


def test_nobody_joins_an_epoch_whose_gossip_is_over(store: Any) -> None:
    other, new = Membership(store, 0, 2), Membership(store, 1, 2, incarnation=1)
    other.remove(store, [1], "it has died")
    assert end_epoch(store, read_members(store), 3)
    assert not new.join(store, epoch=3)
    assert read_members(store).living == {0: 0}
    assert new.join(store, epoch=4)
    assert read_members(store).over == 3


def test_an_epoch_does_not_end_without_one_that_has_just_joined(store: Any) -> None:
    """Whoever ends it has looked whether those retired who were members before."""
    Membership(store, 0, 2)
    before = read_members(store)
    assert Membership(store, 1, 2, incarnation=1).join(store, epoch=3)
    assert not end_epoch(store, before, 3)
    assert end_epoch(store, read_members(store), 3)
    assert end_epoch(store, read_members(store), 3)  # and once more, by another one


# Schedules: many operations of the store are under way at once


class Died(Exception):
    """A learner dies."""


class SlowStore:
    """What one learner sees of the store: operations take time, and it may die in one.

    Args:
        epoch: that of the learner.
        moments: the number of operations after which it dies; the last of them is
            carried out or not.
    """

    def __init__(self, epoch: "Epoch", moments: int) -> None:
        self._epoch, self._left = epoch, moments

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(*arguments: Any) -> Any:
            self._epoch.threads.sleep(self._epoch.latency())
            self._left -= 1
            if self._left == 0 and self._epoch.order.random() < 0.5:
                raise Died
            found = getattr(self._epoch.store, name)(*arguments)
            if self._left == 0:
                raise Died
            return found

        return operation


class Epoch:
    """The gossip and the meeting of an epoch in which learners die and are replaced.

    Attributes:
        inviting: the active learners that may still invite others.
        over: whether a passive learner has ended its gossip.
        arrived: the ranks that have come to the meeting.
        deaths: the learners that have died.
        joined: how many replacements have joined, and how many were refused.
    """

    def __init__(self, pool: ThreadPoolExecutor, order: random.Random) -> None:
        self.threads, self.order = VirtualThreads(pool), order
        self.size = order.randrange(2, 7)
        self.latency = order.choice([lambda: 1.0, lambda: order.expovariate(1)])
        self.store = HashStore()
        self.actives = range(0, self.size, 2)
        self.inviting = {(rank, 0) for rank in self.actives}
        self.over = False
        self.arrived: set[int] = set()
        self.deaths: list[tuple[int, int]] = []
        self.joined = [0, 0]

    def run(self) -> None:
        ends = self.threads.run([lambda r=r: self._live(r) for r in range(self.size)])
        mets = [end for end in ends if end is not None]
        assert len({found for found, _ in mets}) <= 1
        living = read_members(self.store).living
        for found, (rank, incarnation) in mets:
            assert rank in found.ranks
            assert self.arrived.issuperset(found.ranks)
            assert living[rank] == incarnation

    def _live(self, rank: int) -> tuple[Members, tuple[int, int]] | None:
        for incarnation in range(3):
            own = rank, incarnation
            mortal = self.order.random() < 0.4 and incarnation < 2
            moments = self.order.randrange(1, 30) if mortal else 0
            try:
                found = self._train(own, SlowStore(self, moments))
                return found and (found, own)
            except Died:
                self.deaths.append(own)
                self.inviting.discard(own)
            if self.order.random() < 0.3:
                break
            self.threads.sleep(self.order.expovariate(0.1))
        return None

    def _train(self, own: tuple[int, int], store: Any) -> Members | None:
        rank, incarnation = own
        membership = Membership(store, rank, self.size, incarnation)
        if incarnation > 0:
            joined = membership.join(store, epoch=1)
            self.joined[joined] += 1
            if not joined:
                return None
            assert not self.over
            self.inviting |= {own} if rank in self.actives else set()
        while self.order.random() < 0.7:
            self._look(membership, store)
        if rank in self.actives:
            self.inviting.discard(own)
            retire(store, 1, membership.name(rank), self.actives)
        else:
            self._await_end(membership, store)
            assert not self.inviting
            self.over = True
        self.arrived.add(rank)
        store.set(arrival("end", membership.name(rank)), "1")
        version = -1
        while not store.check([met("end")]):
            if version != (version := membership.members.version):
                decide_meeting(store, "end", None, closes=1)
            self._look(membership, store)
        return parse_met(store.get(met("end")))

    def _await_end(self, membership: Membership, store: Any) -> None:
        version = -1
        while not store.check([gossip_over(1)]):
            changed = version != (version := membership.members.version)
            if changed and end_gossip(store, 1, self.actives):
                return
            self._look(membership, store)

    def _look(self, membership: Membership, store: Any) -> None:
        """Read the members, and notice a death, as each heartbeat does."""
        assert self.threads.now < 10_000, "learners wait for ever"
        self.threads.sleep(self.order.expovariate(1))
        membership.read(store.get(MEMBERS))
        for rank, incarnation in self.deaths:
            present = membership.incarnation(rank) == incarnation
            lives = rank in membership.members.ranks
            if present and lives and self.order.random() < 0.5:
                membership.remove(store, [rank], "it has died")


def test_learners_agree_in_every_schedule_of_deaths_and_joins() -> None:
    """The gossip ends when nobody invites any more; who meet have the same list."""
    order = random.Random(1)
    joined = refused = 0
    with ThreadPoolExecutor(6) as pool:
        for _ in range(SCHEDULES):
            epoch = Epoch(pool, order)
            epoch.run()
            refused, joined = refused + epoch.joined[0], joined + epoch.joined[1]
    assert min(refused, joined) > SCHEDULES / 10
