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
    copy.lend()
    ages = []
    for _ in range(3):
        learner.steps += 1
        copy.publish()
        ages.append(copy.age())
    assert ages == [1, 2, 3]
    copy.correct(vector(0.0))
    learner.steps += 1
    assert copy.age() == 4
    copy.publish()
    assert copy.age() == 0
    assert dict(copy.staleness) == {4: 1}


@given(st.lists(st.sampled_from(["step", "publish", "lend", "correct"]), max_size=40))
def test_newest_copy_is_published_plus_pending(events: list[str]) -> None:
    """Model: `live` changes by steps at once, by corrections at the next publish."""
    learner, copy = published([0.0])
    source = random.Random(0)
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
