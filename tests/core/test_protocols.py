"""Deaths, joins and ends of epochs that change the members at the same time."""

from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.core.protocols import (
    MEMBERS,
    Membership,
    end_epoch,
    read_members,
)


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
