"""The double-buffered copy that gossip works on."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lockstep import Point
from torch import Tensor

from espnet_distopt.learner import Learner
from espnet_distopt.published import Published


def published(x: list[float]) -> tuple[Learner, Published]:
    model = Point(x)
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=1.0))
    return learner, Published(learner)


def vector(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_live_parameters_change_only_at_publish() -> None:
    learner, copy = published([1.0, 2.0])
    copy.lend()
    copy.correct(vector(3.0, 2.0))
    assert learner.params.tolist() == [1.0, 2.0]
    copy.publish()
    assert learner.params.tolist() == [2.0, 2.0]
    copy.publish()
    assert learner.params.tolist() == [2.0, 2.0]  # once


def test_what_is_lent_stays_unchanged() -> None:
    learner, copy = published([1.0])
    lent = copy.lend()
    for _ in range(3):
        learner.params.add_(1)
        copy.publish()
        assert lent.item() == 1.0
    copy.correct(vector(5.0))
    assert lent.item() == 1.0
    copy.publish()
    assert learner.params.item() == 6.0


def test_one_exchange_in_flight() -> None:
    _, copy = published([1.0])
    copy.lend()
    with pytest.raises(AssertionError, match="one exchange in flight"):
        copy.lend()
    copy.give_back()
    copy.lend()
    copy.correct(vector(1.0))
    with pytest.raises(AssertionError, match=r"lend\(\) comes first"):
        copy.correct(vector(1.0))


def test_a_loan_given_back_leaves_nothing() -> None:
    learner, copy = published([1.0])
    copy.lend()
    copy.give_back()
    copy.publish()
    assert learner.params.item() == 1.0
    assert not copy.staleness
    assert copy.age() == 0


def test_staleness_and_age_are_in_own_steps() -> None:
    learner, copy = published([0.0])
    assert copy.age() == 0
    copy.lend()
    ages = []
    for _ in range(3):
        learner.steps += 1
        copy.publish()
        ages.append(copy.age())
    assert ages == [1, 2, 3]
    copy.correct(vector(0.0))
    assert copy.age() == 0  # of what is under way
    learner.steps += 1
    assert not copy.staleness  # of what has been applied
    copy.publish()
    assert dict(copy.staleness) == {4: 1}
    copy.publish()
    assert dict(copy.staleness) == {4: 1}


def test_refresh_publishes_pending_corrections_and_does_not_apply_them() -> None:
    learner, copy = published([1.0])
    copy.lend()
    copy.correct(vector(5.0))
    learner.params.add_(10)
    copy.refresh()
    assert learner.params.item() == 11
    assert copy.lend().item() == 13
    copy.give_back()
    copy.publish()
    assert learner.params.item() == 13
    assert copy.lend().item() == 13


def test_corrections_are_taken_once_and_others_may_come_meanwhile() -> None:
    learner, copy = published([0.0])
    taken = vector(7.0)
    assert not copy.take(taken)
    assert taken.item() == 7
    copy.lend()
    copy.correct(vector(2.0))
    learner.params.add_(10)
    copy.refresh()
    assert copy.take(taken)
    assert taken.item() == 1
    assert not copy.take(taken)
    assert copy.lend().item() == 11  # the newest copy has it all the same
    copy.correct(vector(15.0))
    learner.params.add_(taken)
    assert learner.params.item() == 11
    assert copy.lend().item() == 13
    copy.give_back()
    copy.publish()
    assert learner.params.item() == 13
    assert copy.staleness.total() == 2


def test_without_anybody_to_share_with_nothing_is_kept() -> None:
    model = Point([1.0, 2.0])
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=1.0))
    copy = Published(learner, shared=False)
    copy.publish()
    copy.refresh()
    assert not copy.take(vector(0.0, 0.0))
    assert copy.lend().numel() == 0
    assert learner.params.tolist() == [1.0, 2.0]


EVENTS = ["step", "publish", "refresh", "take", "lend", "correct"]


@given(st.lists(st.sampled_from(EVENTS), max_size=40))
def test_newest_copy_is_published_plus_pending(events: list[str]) -> None:
    """Model: `live` changes by steps at once, by corrections when they are applied."""
    learner, copy = published([0.0])
    source, taken = random.Random(0), vector(0.0)
    live = newest = pending = 0.0
    lent: float | None = None
    for event in events:
        if event == "step":
            learner.params.add_(1)
            live += 1
        elif event == "publish":
            copy.publish()
            live, pending = live + pending, 0.0
            newest = live
        elif event == "refresh":
            copy.refresh()
            newest = live + pending
        elif event == "take":
            if copy.take(taken):
                learner.params.add_(taken)
            live, pending = live + pending, 0.0
        elif event == "lend" and lent is None:
            lent = copy.lend().item()
            assert lent == newest
        elif event == "correct" and lent is not None:
            received = float(source.randrange(-64, 64))
            copy.correct(vector(received))
            pending += (received - lent) / 2
            newest += (received - lent) / 2
            lent = None
        assert learner.params.item() == live
