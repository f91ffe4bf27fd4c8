"""Delay by one (docs/algorithms/synchronous.md, D1, D3 and D4).

`d1d_model` is D-PSGD on the complete graph, so test_dpsgd holds D5, its disagreement,
and its bound of stability. D2, one learner alone, is in test_session, for all
algorithms.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from espnet_distopt.errors import InputError
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from tests.virtual import along, bowls, points, started, x

BOTH = ["d1d_model", "d1d_grad"]


def descend(
    name: str,
    steps: Sequence[int],
    lr: float = 0.1,
    start: float = 0.0,
    shapes: Sequence[tuple[float, float]] = ((1, 0), (3, 1)),
    momentum: float = 0.0,
) -> list[list[float]]:
    """Return the learners' places after each epoch."""
    make = partial(SGD, lr=lr, momentum=momentum)
    learners = points(name, len(shapes), bowls(*shapes), make, [start])
    simulation = started(learners)
    trace = []
    for count in steps:
        simulation.epoch(count)
        trace.append([x(virtual)[0] for virtual in learners])
    return trace


def test_d1_model() -> None:
    *first, last = descend("d1d_model", [1, 1, 1, 120])
    expected = [[0, 0.3], [0.15, 0.36], [0.24, 0.447]]
    np.testing.assert_allclose(first, expected, atol=1e-12)
    np.testing.assert_allclose(last, [15 / 23, 18 / 23], atol=1e-12)


def test_d1_grad() -> None:
    """Its first step has no gradient: x_0 = x_1 = 0."""
    *first, last = descend("d1d_grad", [1, 1, 1, 1, 1, 120])
    expected = [[value] * 2 for value in (0, 0.15, 0.30, 0.42, 0.51)]
    np.testing.assert_allclose(first, expected, atol=1e-12)
    np.testing.assert_allclose(last, [0.75] * 2, atol=1e-12)


@pytest.mark.parametrize("name", BOTH)
def test_d3_mean(name: str) -> None:
    """The mean goes along the mean gradient, of this step or of the step before."""
    source = np.random.default_rng(0)
    gradients = source.uniform(-1, 1, (3, 6))
    learners = points(name, 3, lambda model, rank: along(model, gradients[rank]))
    simulation = started(learners, Compute(spread=1))
    simulation.epoch(6)
    used = gradients[:, : 6 - BOTH.index(name)]
    mean = np.mean([x(virtual) for virtual in learners], axis=0)
    expected = np.array([0.25, -0.5]) - 0.1 * used.mean(0).sum()
    np.testing.assert_allclose(mean, expected, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_stability_bound_of_delayed_gradients(beta: float) -> None:
    """lr h < 1 - beta: the roots of z^2 - (1 + beta) z + beta + lr h have that square.

    Without a delay the bound is 2 (1 + beta).
    """
    sizes = []
    for lr in (0.96 - beta, 1.04 - beta):
        trace = descend("d1d_grad", [119, 1], lr, 1.0, [(1, 0)] * 2, beta)
        sizes.append(np.abs(trace).max())
    assert sizes[0] < 0.2
    assert sizes[1] > 5


class Net(nn.Module):
    """Uses `rare` only where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        self.rare = nn.Linear(4, 1)
        self.never = nn.Linear(2, 1)
        self.double()

    def forward(self, inputs: Tensor, rare: bool) -> Tensor:
        hidden = torch.tanh(self.body(inputs))
        y: Tensor = self.head(hidden)
        return y + self.rare(hidden) if rare else y


def rare_at(rank: int, step: int) -> bool:
    return (rank, step) in {(1, 2), (2, 2), (0, 3), (2, 6)}


def batch(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(1 + rank, 3, generator=generator).double()


def nets(make: Any) -> list[VirtualLearner]:
    learners: list[VirtualLearner] = []

    def gradient_of(model: Net, rank: int) -> Callable[[int], float]:
        def gradient(step: int) -> float:
            inputs = batch(rank, step)
            learners[rank].learner.samples = len(inputs)
            loss = model(inputs, rare_at(rank, step)).square().mean()
            loss.backward()
            return float(loss.detach())

        return gradient

    for rank in range(3):
        model = Net()
        parts = model, make(model.parameters()), gradient_of(model, rank)
        learners.append(VirtualLearner(*parts, "d1d_grad", rank, 3))
    return learners


@pytest.mark.parametrize(
    "make",
    [partial(Adam, lr=0.01, weight_decay=0.1), partial(SGD, lr=0.1, momentum=0.9)],
)
def test_d4_replicas_stay_bitwise_equal(make: Any) -> None:
    """Also where a step uses parameters whose gradient comes one step later."""
    learners = nets(make)
    simulation = started(learners)
    for _ in range(9):
        simulation.epoch(1)
        for virtual in learners[1:]:
            assert torch.equal(virtual.learner.params, learners[0].learner.params)


def test_the_gradient_is_that_of_the_whole_batch_one_step_late() -> None:
    """Batches count by their samples; a parameter is stepped when its turn comes."""
    make = partial(Adam, lr=0.01, weight_decay=0.1)
    learners = nets(make)
    simulation = started(learners)
    whole = Net()
    optimizer = make(whole.parameters())
    late: list[Tensor | None] = [torch.zeros_like(p) for p in whole.parameters()]
    for step in range(8):
        simulation.epoch(1)
        optimizer.zero_grad()
        total = sum(
            whole(batch(rank, step), rare_at(rank, step)).square().sum()
            for rank in range(3)
        )
        (total / 6).backward()
        now = [p.grad for p in whole.parameters()]
        for parameter, grad in zip(whole.parameters(), late, strict=True):
            parameter.grad = grad
        optimizer.step()
        late = now
        expected = nn.utils.parameters_to_vector(whole.parameters())
        torch.testing.assert_close(
            learners[1].learner.params, expected, rtol=0, atol=1e-12
        )


def test_the_first_step_stays_and_adam_counts_it() -> None:
    learners = points("d1d_grad", 2, lambda model, _: along(model, [1.0]), Adam)
    simulation = started(learners)
    simulation.epoch(1)
    for virtual in learners:
        assert x(virtual) == [0.25, -0.5]
        (state,) = virtual.optimizer.state.values()
        assert state["step"] == 1


def test_an_epochs_end_leaves_no_gradient_for_the_next_to_add_to() -> None:
    """ESPnet's loop zeroes gradients after the step, and not before the next one."""
    learners = points("d1d_grad", 2, lambda model, _: along(model, [1.0] * 3))
    simulation = started(learners)
    for virtual in learners:
        virtual.optimizer.register_step_post_hook(lambda o, *_: o.zero_grad())
    simulation.epoch(3)
    for virtual in learners:
        assert all(p.grad is None for p in virtual.learner.parameters)


def test_a_gradient_that_is_not_finite_makes_all_skip_one_step_later() -> None:
    slopes = [[1.0, 1.0, 1.0], [1.0, float("nan"), 1.0]]
    learners = points("d1d_grad", 2, lambda model, rank: along(model, slopes[rank]))
    seen: list[bool] = []

    def look(optimizer: Any, *_: Any) -> None:
        (parameter,) = optimizer.param_groups[0]["params"]
        seen.append(bool(parameter.grad.isfinite().all()))

    for virtual in learners:
        virtual.optimizer.register_step_pre_hook(look)
    simulation = started(learners)
    simulation.epoch(3)
    assert seen == [True] * 4 + [False] * 2


def test_accumulated_gradients_are_refused() -> None:
    learners = points("d1d_grad", 2, lambda model, _: along(model, [1.0]))
    for virtual in learners:
        after_backward = virtual.algorithm.after_backward

        def twice(learner: Any, once: Any = after_backward) -> Any:
            yield from once(learner)
            yield from once(learner)

        virtual.algorithm.after_backward = twice  # type: ignore[method-assign]
    simulation = started(learners)
    with pytest.raises(InputError, match="step 0: d1d_grad takes one backward pass"):
        simulation.epoch(1)


def test_the_state_of_one_learner_alone_is_no_obstacle_to_two() -> None:
    alone = points("d1d_grad", 1, lambda model, _: along(model, [1.0] * 2))
    Simulation(alone).start()
    learners = points("d1d_grad", 2, lambda model, _: along(model, [1.0] * 2))
    simulation = started(learners)
    learners[0].algorithm.load_state_dict(alone[0].algorithm.state_dict())
    simulation.epoch(2)
    assert x(learners[0]) == pytest.approx([0.15, -0.6])
