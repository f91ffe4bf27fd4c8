"""The share of noise that is a learner's own, where it is known."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.core.learner import Learner
from espnet_distopt.optimizers.consistent import ConsistentSecondMoment
from espnet_distopt.optimizers.noise_share import (
    EACH,
    STEPS,
    TENSORS,
    TURN,
    WHOLE,
    NoiseShare,
    PairedNoiseShare,
)


class Two(nn.Module):
    """A model of a large parameter and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.zeros(40, 50, dtype=torch.float64))
        self.small = nn.Parameter(torch.zeros(200, dtype=torch.float64))


Group = list[tuple[Learner, NoiseShare]]


def learners(size: int, make: Any = Adam) -> Group:
    found = []
    for rank in range(size):
        model = Two()
        learner = Learner(model, make(model.parameters(), lr=0.1), rank, size)
        found.append((learner, NoiseShare(learner, corrects=True)))
    return found


def train(
    group: Sequence[tuple[Learner, NoiseShare]],
    own: float,
    common: float,
    weights: Sequence[float] | None = None,
    steps: int = 200,
) -> None:
    """Step on noise about a slope, and let the first learner compare in each step.

    Without weights it takes the mean of all learners' deviations.
    """
    drawing = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, 2200, dtype=torch.float64, generator=drawing)
    moments = [ConsistentSecondMoment(each.optimizer, 8, s) for each, s in group]
    for _ in range(steps):
        all_see = 3 + common * draw()
        for learner, _ in group:
            gradients = (all_see + own * draw()).split([2000, 200])
            for p, gradient in zip(learner.parameters, gradients, strict=True):
                if p.requires_grad:
                    p.grad = gradient.view_as(p)
            learner.optimizer.step()
        samples = torch.stack([share.sample() for _, share in group])
        first = group[0][1]
        if weights is None:
            first.compare(samples.var(0, correction=0), 1 - 1 / len(group))
        else:
            mean = torch.tensor(weights, dtype=torch.float64) @ samples
            spread = (1 - weights[0]) ** 2 + sum(each**2 for each in weights[1:])
            first.compare((samples[0] - mean).square(), spread)
    group[0][1].use()
    for moment in moments:
        moment.close()


@pytest.mark.parametrize("weights", [None, [0.5, 0.25, 0.25], [0.2, 0.1, 0.7]])
@pytest.mark.parametrize(
    ("own", "common", "share"), [(1, 0, 1.0), (0, 1, 0.0), (1, 1, 0.5), (1, 2, 0.2)]
)
def test_it_is_the_share_of_the_variance(
    own: float, common: float, share: float, weights: list[float] | None
) -> None:
    group = learners(3)
    train(group, own, common, weights)
    learner, found = group[0]
    counted = min(1, share / WHOLE)
    for parameter in learner.parameters:
        assert found.of(parameter) == pytest.approx(counted, abs=0.03)


def test_each_parameter_has_its_own_and_others_that_of_all() -> None:
    learner, found = learners(2)[0]
    large, small = learner.parameters
    found.measured[:] = [0.1, 0.2, 0.3]
    assert found.of(large) == 0  # It is measured, and not used yet.
    found.use()
    other = nn.Parameter(torch.zeros(3))
    assert [found.of(each) for each in (large, small, other)] == [0.1, 0.2, 0.3]


def test_nothing_is_compared_where_nothing_is_corrected() -> None:
    for make in (SGD, partial(Adam, amsgrad=True)):
        learner, share = learners(1, make)[0]
        assert share.size == len(share.sample()) == 0
        share.compare(learner.params.new_zeros(0), 0.5)
        assert share.of(learner.parameters[0]) == 0
    model = Two()
    learner = Learner(model, Adam(model.parameters()), 0, 2)
    assert NoiseShare(learner, corrects=False).size == 0


def test_only_some_elements_of_the_largest_parameters_are_compared() -> None:
    model = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in range(1, 41))
    learner = Learner(model, Adam(model.parameters()), 0, 2)
    assert NoiseShare(learner, True).size == sum(range(41 - TENSORS, 41))
    model = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in (0, 2))
    assert NoiseShare(Learner(model, Adam(model.parameters()), 0, 2), True).size == 2
    wide = nn.Linear(1000, 3, bias=False)
    learner = Learner(wide, Adam(wide.parameters()), 0, 2)
    assert NoiseShare(learner, True).size == 3000 // -(-3000 // EACH)


def test_before_the_noise_is_known_nothing_is_measured() -> None:
    group = learners(2)
    train(group, 1, 0, steps=1)
    assert group[0][1].shares == [0, 0, 0]


def test_a_parameter_without_gradients_leaves_the_others_theirs() -> None:
    group = learners(2)
    for learner, _ in group:
        learner.parameters[1].requires_grad_(False)
    train(group, 1, 1)
    large, small = map(group[0][1].of, group[0][0].parameters)
    assert large == pytest.approx(0.5 / WHOLE, abs=0.06)
    assert small == 0


def test_a_sample_is_that_of_the_last_update() -> None:
    """A step that was skipped has no part, nor has what a loop writes behind one."""
    group = learners(2)
    train(group, 1, 1, steps=3)
    learner, share = group[0]
    before = share.sample().clone()
    assert before.abs().sum() > 0
    for p in learner.parameters:
        p.grad = torch.full_like(p, torch.nan)
    assert torch.equal(share.sample(), before)


def test_gradients_that_a_fused_optimizer_scales_back_are_as_it_uses_them() -> None:
    """Scaled or not, the shares are the same."""

    def measured(scale: float) -> list[float]:
        group = learners(2, partial(Adam, fused=True))
        for learner, _ in group:
            optimizer: Any = learner.optimizer
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(0.0)
        train(group, scale, scale, steps=20)
        return group[0][1].shares

    def plain() -> list[float]:
        group = learners(2, partial(Adam, fused=True))
        train(group, 1, 1, steps=20)
        return group[0][1].shares

    # `train` has a slope beside the noise, which the scale leaves as it is.
    assert measured(1.0) == plain()
    assert measured(64.0) == pytest.approx(plain(), rel=0.1)


def test_a_state_goes_on_with_the_same_bits() -> None:
    def measured(cut: bool) -> list[float]:
        group = learners(2)
        train(group, 1, 1, steps=20)
        if cut:
            learner, share = group[0]
            again = NoiseShare(learner, corrects=True)
            again.load_state_dict(share.state_dict())
            assert again.shares == share.shares
            group[0] = learner, again
        train(group, 1, 1, steps=20)
        return group[0][1].shares

    assert measured(True) == measured(False)


def test_the_state_of_another_model_begins_anew() -> None:
    _, share = learners(1)[0]
    state = share.state_dict()
    wide = nn.Linear(5, 5)
    other = NoiseShare(Learner(wide, Adam(wide.parameters()), 0, 2), corrects=True)
    other.load_state_dict(state)
    assert other.sample().tolist() == [0] * 30


def pair(delay: int, own: float, common: float, epochs: int = 1) -> float:
    """Return the share of one of two learners, where the other is so many steps ahead.

    They exchange after each step that one of them makes. Both see the same common noise
    at the same step of an epoch.
    """
    shared = torch.randn(
        TURN + 100,
        2200,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(2),
    )
    drawing = torch.Generator().manual_seed(3)
    both = []
    for rank in range(2):
        model = Two()
        learner = Learner(model, Adam(model.parameters(), lr=0.1), rank, 2)
        share = PairedNoiseShare(learner, corrects=True)
        moment = ConsistentSecondMoment(learner.optimizer, 2, share)
        both.append((learner, share, moment))

    def step(which: int, number: int) -> None:
        learner, share, _ = both[which]
        noise = torch.randn(2200, dtype=torch.float64, generator=drawing)
        gradient = 3 + common * shared[number] + own * noise
        for p, part in zip(
            learner.parameters, gradient.split([2000, 200]), strict=True
        ):
            p.grad = part.view_as(p)
        learner.optimizer.step()
        learner.steps += 1
        share.sample()

    for epoch in range(epochs):
        for _, share, _ in both:
            share.begin_epoch()
        for number in range(TURN + 60 + delay):
            step(1, number)
            if number >= delay:
                step(0, number - delay)
            ahead, behind = (share.message().clone() for _, share, _ in both[::-1])
            both[0][1].compare_pair(behind, ahead - behind)
            both[1][1].compare_pair(ahead, behind - ahead)
        if epoch < epochs - 1:
            step(1, 0)  # One of them has more data.
    for _, share, moment in both:
        share.use()
        moment.close()
    shares = [share.of(learner.parameters[0]) for learner, share, _ in both]
    assert shares[0] == pytest.approx(shares[1], abs=0.1)
    return shares[0]


@pytest.mark.parametrize("delay", [0, 1, STEPS - 1])
def test_learners_that_are_some_steps_apart_compare_equal_steps(delay: int) -> None:
    assert pair(delay, own=1, common=1) == pytest.approx(0.5 / WHOLE, abs=0.06)
    assert pair(delay, own=0, common=1) == pytest.approx(0, abs=0.06)


def test_what_learners_far_apart_have_in_common_counts_as_their_own() -> None:
    assert pair(STEPS, own=1, common=1) == pytest.approx(1, abs=0.1)


def test_steps_count_from_the_start_of_an_epoch() -> None:
    assert pair(0, own=0, common=1, epochs=2) == pytest.approx(0, abs=0.06)


def test_the_state_of_a_pair_has_its_last_steps() -> None:
    model = Two()
    learner = Learner(model, Adam(model.parameters(), lr=0.1), 0, 2)
    share = PairedNoiseShare(learner, corrects=True)
    assert len(share.message()) == share.message_size == STEPS * share.size + 1
    for number in range(5):
        for p in learner.parameters:
            p.grad = torch.full_like(p, number)
        learner.optimizer.step()
        learner.steps += 1
        share.sample()
    again = PairedNoiseShare(learner, corrects=True)
    again.load_state_dict(share.state_dict())
    assert torch.equal(again.message(), share.message())
    assert share.message()[-1] == 5
