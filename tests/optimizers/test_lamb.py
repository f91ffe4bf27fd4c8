"""LAMB beside its published rule, and the same through checkpoints.

The vectors are LB1 to LB5 of docs/algorithms/optimizers.md.
"""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.lamb import Lamb

SHAPES = [(5, 4), (7,), (1,), (3, 2, 2)]


def parameters(dtype: torch.dtype, scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES)
    return [nn.Parameter((scale * x).to(dtype)) for x in made]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]


def descend(optimizer: Lamb, xs: list[nn.Parameter], start: int, stop: int) -> None:
    for step in range(start, stop):
        for x, gradient in zip(xs, gradients(step), strict=True):
            x.grad = gradient.to(x.dtype)
        optimizer.step()


def published(
    x: Tensor,
    history: list[Tensor],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> Tensor:
    """The moments as explicit sums over all gradients so far."""
    (b1, b2), x = betas, x.clone()
    for t in range(1, len(history) + 1):
        ages = range(t - 1, -1, -1)
        m = sum((1 - b1) * b1**a * g for a, g in zip(ages, history, strict=False))
        v = sum((1 - b2) * b2**a * g**2 for a, g in zip(ages, history, strict=False))
        r = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps) + weight_decay * x
        x = x - lr * x.norm() / r.norm() * r
    return x


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-6)]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.01}, {"betas": (0.5, 0.9), "eps": 1e-3, "lr": 0.1}],
)
def test_lb1_published_rule(
    options: dict[str, Any], dtype: torch.dtype, limit: float, scale: float
) -> None:
    xs = parameters(dtype, scale)
    descend(Lamb(xs, **options), xs, 0, 20)
    history = list(zip(*map(gradients, range(20)), strict=True))
    defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}
    for x, start, seen in zip(xs, parameters(dtype, scale), history, strict=True):
        expected = published(
            start.detach().double(), list(seen), **{**defaults, **options}
        )
        assert (x.detach() - expected).norm() / expected.norm() < limit


def test_lb2_first_step_moves_every_tensor_by_lr_of_its_length() -> None:
    xs, starts = parameters(torch.float64, 3.0), parameters(torch.float64, 3.0)
    descend(Lamb(xs, lr=0.01, eps=0.0), xs, 0, 1)
    for x, start in zip(xs, starts, strict=True):
        assert (x - start).norm().item() == pytest.approx(0.01 * start.norm().item())


def test_lb3_ratio_is_1_for_a_tensor_of_zeros_and_for_no_update() -> None:
    zeros = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    still = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = Lamb([zeros, still], lr=0.1, eps=0.0)
    zeros.grad, still.grad = torch.ones_like(zeros), torch.zeros_like(still)
    optimizer.param_groups[0]["eps"] = 1e-8
    optimizer.step()
    assert zeros.tolist() == pytest.approx([-0.1] * 3)
    assert still.tolist() == [1.0] * 3


def test_lb4_parameter_without_gradient_is_left_alone() -> None:
    xs = parameters(torch.float64)
    before = xs[0].detach().clone()
    optimizer = Lamb(xs)
    xs[1].grad = torch.ones_like(xs[1])
    optimizer.step()
    assert torch.equal(xs[0], before)
    assert xs[0] not in optimizer.state


@pytest.mark.parametrize("done", [0, 1, 4])
def test_lb5_resume_is_the_uninterrupted_run_bit_for_bit(done: int) -> None:
    whole = parameters(torch.float32)
    descend(Lamb(whole, weight_decay=0.1), whole, 0, 7)
    xs = parameters(torch.float32)
    optimizer = Lamb(xs, weight_decay=0.1)
    descend(optimizer, xs, 0, done)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    fresh = Lamb(xs)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    descend(fresh, xs, done, 7)
    for x, y in zip(xs, whole, strict=True):
        assert torch.equal(x, y)


def test_it_steps_inside_a_learners_flat_buffer() -> None:
    model = nn.Linear(3, 2)
    optimizer = Lamb(model.parameters())
    learner = Learner(model, optimizer)
    model(torch.ones(1, 3)).sum().backward()
    before = learner.params.clone()
    optimizer.step()
    learner.check_storage()
    assert not torch.equal(learner.params, before)
    assert learner.updates == 1


def test_closure() -> None:
    x = nn.Parameter(torch.ones(2))
    optimizer = Lamb([x])

    def closure() -> float:
        loss = (x * x).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 2.0
    assert (x < 1).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1.0}, "lr must be >= 0 and finite, not -1.0"),
        ({"lr": float("nan")}, "lr must be >= 0 and finite, not nan"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers in"),
        ({"betas": (0.9,)}, "betas must be two numbers in"),
        ({"eps": -1e-8}, "eps and weight_decay must be >= 0"),
        ({"weight_decay": -0.1}, "eps and weight_decay must be >= 0"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Lamb([nn.Parameter(torch.ones(1))], **options)
