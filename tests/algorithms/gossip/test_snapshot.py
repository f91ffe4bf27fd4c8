"""The copy that gossip works on."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from espnet_distopt.algorithms.gossip.snapshot import HALF, Snapshot
from espnet_distopt.core.learner import Learner
from tests.replicas import Point, aside, correct


def published(x: list[float]) -> tuple[Learner, Snapshot]:
    model = Point(x)
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=1.0))
    return learner, Snapshot(learner)


def vector(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_a_cancelled_exchange_has_not_taken_place() -> None:
    """The step meanwhile is published next, and the tensor is used again."""
    learner, copy = published([1.0])
    copy.begin_exchange()
    spare = copy.spare()
    learner.params.add_(1)
    learner.steps += 1
    copy.publish()
    copy.cancel_exchange(spare)
    assert copy.outdated
    assert not copy.unapplied()
    copy.publish()
    assert copy.begin_exchange().item() == 2.0
    assert copy.spare() is spare


def test_what_is_kept_is_renewed_when_its_time_is_over() -> None:
    learner, copy = published([1.0])
    copy.keep(2)
    seen = []
    for _ in range(4):
        learner.params.add_(1)
        learner.steps += 1
        copy.publish()
        seen.append((copy.state(9).copy is None, copy._copy.item()))
    assert seen == [(True, 1.0), (False, 3.0), (False, 4.0), (False, 5.0)]


def test_a_correction_during_which_a_copy_is_kept_is_in_both() -> None:
    """The copy lacks the step, and no correction."""
    learner, copy = published([1.0])
    copy.begin_exchange()
    correct(copy, vector(5.0))
    copy.keep(2)
    learner.params.add_(1)
    learner.steps += 1
    copy.publish()
    assert learner.params.item() == 4.0
    assert copy.begin_exchange().item() == 3.0
    assert copy.age() == 1


def test_an_exchange_ends_the_time_for_which_a_copy_is_kept() -> None:
    learner, copy = published([1.0])
    copy.keep(9)
    copy.begin_exchange()
    learner.steps += 1
    copy.cancel_exchange()
    copy.publish()
    assert not copy.outdated


def test_one_exchange_in_flight() -> None:
    _, copy = published([1.0])
    copy.begin_exchange()
    with pytest.raises(AssertionError, match="one exchange in flight"):
        copy.begin_exchange()
    correct(copy, vector(1.0))
    with pytest.raises(AssertionError, match=r"begin_exchange\(\) comes first"):
        correct(copy, vector(1.0))


def test_staleness_and_age_are_in_own_steps() -> None:
    learner, copy = published([0.0])
    assert copy.age() == 0
    copy.begin_exchange()
    ages = []
    for _ in range(3):
        learner.steps += 1
        copy.publish()
        ages.append(copy.age())
    assert ages == [1, 2, 3]
    correct(copy, vector(0.0))
    assert copy.age() == 0  # of what is under way
    learner.steps += 1
    assert not copy.staleness  # of what has been applied
    copy.publish()
    assert dict(copy.staleness) == {4: 1}
    copy.publish()
    assert dict(copy.staleness) == {4: 1}


def test_a_copy_lent_during_a_step_is_outdated_until_the_next() -> None:
    learner, copy = published([1.0])
    assert not copy.outdated
    copy.begin_exchange()
    learner.steps += 1
    learner.params.add_(10)
    copy.publish()
    assert copy.outdated
    correct(copy, vector(5.0))
    assert copy.outdated
    assert copy._copy.item() == 3  # as of the step before, corrected
    learner.steps += 1
    copy.publish()
    assert not copy.outdated
    assert copy.begin_exchange().item() == learner.params.item() == 13


def test_two_copies_suffice_unless_a_learner_is_asked_twice_in_a_step() -> None:
    _, copy = published([1.0])
    seen = set()
    for asked in [1, 1, 1, 2, 2]:
        for _ in range(asked):
            seen.add(copy.begin_exchange().data_ptr())
            received = copy.spare().fill_(2.0)
            seen.add(received.data_ptr())
            aside(copy.end_exchange(received))
        copy.publish()
        assert len(seen) == 1 + asked


def test_corrections_are_taken_once_and_others_may_come_meanwhile() -> None:
    learner, copy = published([0.0])
    assert copy.take() is None
    copy.begin_exchange()
    correct(copy, vector(2.0))
    learner.params.add_(10)
    taken = copy.take()
    assert taken is not None and taken.item() == 2  # of which half counts
    assert copy.begin_exchange().item() == 11  # which has it all the same
    correct(copy, vector(15.0))
    learner.params.add_(taken, alpha=HALF)
    copy.recycle()
    assert learner.params.item() == 11
    assert copy._copy.item() == 13
    copy.publish()
    assert learner.params.item() == 13
    assert copy.staleness.total() == 2


def test_corrections_that_are_being_merged_count_as_in_use() -> None:
    learner, copy = published([0.0])
    copy.begin_exchange()
    correct(copy, vector(2.0))
    learner.steps += 3
    copy.begin_exchange()
    merging = copy.end_exchange(copy.spare().fill_(5.0))
    next(merging).work()
    assert copy.age() == 3  # of the copy in use; the correction can be applied
    next(merging).work()
    assert copy.age() == 3
    copy.publish()
    assert not copy.staleness  # it was out of reach
    with pytest.raises(StopIteration):
        next(merging)
    copy.publish()
    assert learner.params.item() == 1 + 2
    assert dict(copy.staleness) == {3: 2}


def test_without_anybody_to_share_with_nothing_is_kept() -> None:
    model = Point([1.0, 2.0])
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=1.0))
    copy = Snapshot(learner, shared=False)
    copy.publish()
    assert copy.take() is None
    assert copy.begin_exchange().numel() == 0
    assert learner.params.tolist() == [1.0, 2.0]


EVENTS = ["step", "publish", "take", "lend", "correct", "aside", "aside"]


class Model:
    """What `Snapshot` promises, in numbers.

    `live` changes by steps at once, by corrections when they are applied; `pending` is
    handed over and not applied, and out of reach while `merging`. `copy` is of the
    last time that it was at home.
    """

    def __init__(self) -> None:
        self.live = self.copy = self.pending = self.correction = 0.0
        self.merging = self.lent = False

    def renew(self) -> None:
        """Apply what is within reach, and publish."""
        if not self.merging:
            self.live, self.pending = self.live + self.pending, 0.0
        if not self.lent:
            self.copy = self.live

    def corrected(self) -> None:
        """End an exchange."""
        self.pending += self.correction
        self.copy += self.correction
        self.lent = False


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_the_copy_is_published_plus_handed_over(events: list[str]) -> None:
    """Whatever the training side does between the pieces of what gossip does."""
    learner, copy = published([0.0])
    source, model = random.Random(0), Model()
    gossip: Any = None  # under way
    work: Callable[[], object] | None = None  # of its own
    for event in events:
        begins = False
        if event == "step":
            learner.params.add_(1)
            model.live += 1
        elif event == "publish":
            copy.publish()
            model.renew()
        elif event == "take":
            if (taken := copy.take()) is not None:
                learner.params.add_(taken, alpha=HALF)
                copy.recycle()
            model.renew()
        elif event == "lend" and not model.lent:
            model.lent = True
            assert copy.begin_exchange().item() == model.copy
        elif event == "correct" and model.lent and gossip is None:
            received = float(2 * source.randrange(-64, 64))
            model.correction = (received - model.copy) / 2
            gossip, begins = copy.end_exchange(copy.spare().fill_(received)), True
        elif event == "aside" and work is not None:
            work()
            begins = True
        if begins:
            try:
                work = next(gossip).work
                model.merging = bool(copy._merging_steps)
            except StopIteration:
                gossip, work, model.merging = None, None, False
                model.corrected()
        assert learner.params.item() == model.live
        assert gossip is not None or copy._copy.item() == model.copy
