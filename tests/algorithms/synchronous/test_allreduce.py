"""Synchronous SGD.

The vectors are SC1, SC2 and SC4 of docs/algorithms/synchronous.md; R2 is a rule of
docs/algorithms/README.md.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.algorithms.synchronous import allreduce
from tests.replicas import Point, Replica, run


@pytest.fixture(autouse=True, params=[allreduce.BUCKET, 8])
def bucket(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Average the gradients as a whole, and each parameter's on its own."""
    monkeypatch.setattr(allreduce, "BUCKET", request.param)
    monkeypatch.setattr(allreduce, "FIRST", request.param)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        self.rare = nn.Linear(4, 1)

    def forward(self, x: Tensor, rare: bool = False) -> Tensor:
        hidden = torch.tanh(self.body(x))
        y = self.head(hidden)
        return y + self.rare(hidden) if rare else y


def replicas(size: int, make: Any, model: Callable[[], nn.Module]) -> list[Replica]:
    return [Replica.of("allreduce", model(), make, r, size) for r in range(size)]


def backward(replica: Replica, loss: Tensor, samples: float = 1) -> Any:
    replica.learner.samples = samples
    loss.backward()
    yield from replica.algorithm.after_backward(replica.learner)


def backwards(
    learners: list[Replica],
    losses: Iterable[Tensor],
    samples: Iterable[float] = (1, 1, 1),
) -> None:
    """A backward pass of each learner, whose gradients are averaged."""
    run(*map(backward, learners, losses, samples))


def step(learners: list[Replica], set_to_none: bool = True) -> None:
    for replica in learners:
        replica.optimizer.step()
        replica.optimizer.zero_grad(set_to_none=set_to_none)


def grads(replica: Replica) -> Tensor:
    found = [p.grad for p in replica.learner.parameters]
    return torch.cat([g.flatten() for g in found if g is not None])


def test_sc1_replicas_stay_bitwise_equal() -> None:
    learners = replicas(3, partial(Adam, lr=0.01), Net)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        batches = torch.randn(3, 2, 3, generator=generator)
        pairs = zip(learners, batches, strict=True)
        backwards(learners, [r.model(x).square().mean() for r, x in pairs])
        step(learners)
        for replica in learners[1:]:
            assert torch.equal(replica.learner.params, learners[0].learner.params)


def test_sc4_two_quadratics() -> None:
    learners = replicas(2, partial(SGD, lr=0.1), lambda: Point([0.0]))
    trace = []
    for _ in range(60):
        x, y = (r.model.x for r in learners)
        losses = (x.square().sum() / 2, 3 * (y - 1).square().sum() / 2)
        backwards(learners, losses)
        step(learners)
        trace.append(learners[0].x[0])
    assert trace[:3] == pytest.approx([0.15, 0.27, 0.366], rel=1e-12)
    assert trace[-1] == pytest.approx(0.75, abs=1e-5)
    assert learners[0].x == learners[1].x


def test_r2_uneven_batches_give_the_gradient_of_the_whole_batch() -> None:
    learners = replicas(3, partial(SGD, lr=0.1), lambda: Net().double())
    whole = Net().double()
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).double()
    parts = x.split([4, 1, 2])
    pairs = zip(learners, parts, strict=True)
    losses = [r.model(part).square().mean() for r, part in pairs]
    backwards(learners, losses, map(len, parts))
    whole(x).square().mean().backward()
    expected = torch.cat(
        [p.grad.flatten() for p in whole.parameters() if p.grad is not None]
    )
    for replica in learners:
        torch.testing.assert_close(grads(replica), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("samples", [(1, 1), (3, 1)])
def test_accumulated_gradients_are_the_sum(samples: tuple[int, int]) -> None:
    learners = replicas(2, partial(SGD, lr=0.1), lambda: Point([0.0, 0.0]))
    slopes = torch.tensor([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0]], dtype=torch.float64)
    for slope in slopes:
        losses = [(r.model.x * slope * n).sum() for n, r in enumerate(learners, 1)]
        backwards(learners, losses, samples)
    weight = (samples[0] + 2 * samples[1]) / sum(samples)
    for replica in learners:
        torch.testing.assert_close(
            grads(replica), slopes.sum(0) * weight, rtol=1e-12, atol=0
        )


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_parameter_used_by_one_learner_is_stepped_by_all(set_to_none: bool) -> None:
    learners = replicas(2, partial(Adam, lr=0.01), Net)
    for number in range(4):
        x = torch.full((2, 3), 0.5 + number)
        uses = [False, number > 0]
        pairs = zip(learners, uses, strict=True)
        backwards(learners, [r.model(x, rare=rare).sum() for r, rare in pairs])
        if number == 0:
            assert all(r.model.rare.weight.grad is None for r in learners)
        step(learners, set_to_none)
        a, b = (r.learner.params for r in learners)
        assert torch.equal(a, b)
    steps = learners[0].optimizer.state[learners[0].model.rare.weight]["step"]
    assert steps.item() == 3


def test_nan_on_one_learner_makes_all_skip() -> None:
    learners = replicas(2, partial(SGD, lr=0.1), lambda: Point([1.0]))
    first, second = (r.model.x.sum() for r in learners)
    backwards(learners, [first * float("nan"), second])
    for replica in learners:
        norm = nn.utils.clip_grad_norm_(replica.model.parameters(), 1.0)
        assert not norm.isfinite()


def test_clipping_sees_the_mean_gradient() -> None:
    learners = replicas(2, partial(SGD, lr=1.0), lambda: Point([0.0]))
    first, second = (r.model.x.sum() for r in learners)
    backwards(learners, [6 * first, 2 * second])
    for replica in learners:
        norm = nn.utils.clip_grad_norm_(replica.model.parameters(), 1.0)
        assert norm.item() == pytest.approx(4.0)
        replica.optimizer.step()
    assert learners[0].x == learners[1].x == pytest.approx([-1.0], rel=1e-5)


def _epoch(replica: Replica, steps: int) -> Any:
    try:
        for _ in range(steps):
            yield from backward(replica, replica.model.x.sum())
            replica.optimizer.step()
            replica.optimizer.zero_grad()
            replica.learner.steps += 1
        yield from replica.algorithm.finish(replica.learner)
    except UnequalStepsError as error:
        return str(error)
    return "whole"


@pytest.mark.parametrize("lengths", [(3, 2), (2, 3), (0, 1), (3, 3, 2), (2, 2, 3)])
def test_unequal_steps_are_an_error_on_all_learners(lengths: tuple[int, ...]) -> None:
    learners = replicas(len(lengths), partial(SGD, lr=0.1), lambda: Point([0.0]))
    ends = run(*(_epoch(r, n) for r, n in zip(learners, lengths, strict=True)))
    for rank, message in enumerate(ends):
        assert f"learner {rank}, step {min(lengths)}: " in message
        assert "unequal numbers of steps" in message


def test_equal_steps_end_in_peace() -> None:
    learners = replicas(3, partial(SGD, lr=0.1), lambda: Point([0.0]))
    assert run(*(_epoch(r, 4) for r in learners)) == ["whole"] * 3
    (model,) = run(learners[0].algorithm.consensus(learners[0].learner))
    assert model.tolist() == learners[1].x
