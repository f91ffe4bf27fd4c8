"""The corrected second moment: equations in float64, and what a user does with it."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam

from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import (
    NOISE,
    ConsistentSecondMoment,
    can_correct,
)

MAKES = {
    "Adam": partial(Adam, lr=0.01),
    "decay": partial(Adam, lr=0.01, weight_decay=0.1),
    "AdamW": partial(AdamW, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)),
    "maximize": partial(Adam, lr=0.01, maximize=True, eps=1e-3),
}


def gradients(count: int, size: int = 7) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield 0.3 + torch.randn(size, generator=generator, dtype=torch.float64)


def expected(options: dict[str, Any], adamw: bool, batches: int) -> torch.Tensor:
    """Follow the equations of the module's head, one scalar rule after the other."""
    lr, (b1, b2) = options["lr"], options.get("betas", (0.9, 0.999))
    eps, decay = options.get("eps", 1e-8), options.get("weight_decay", 0.0)
    x = torch.ones(7, dtype=torch.float64)
    m, v, s = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for t, g in enumerate(gradients(30), 1):
        g = -g if options.get("maximize") else g
        if adamw:
            x = x * (1 - lr * decay)
        else:
            g = g + decay * x
        if t > 1:
            before = m / (1 - b1 ** (t - 1))
            r = (1 - b1) / (1 + b1) * (1 + b1 ** (t - 1)) / (1 - b1 ** (t - 1))
            s = b2 * s + (1 - b2) * (g - before) ** 2 / (1 + r)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        vh = v / (1 - b2**t)
        vn = vh
        if t > 1:
            noise = s / (1 - b2 ** (t - 1))
            vn = torch.maximum(vh - (1 - 1 / batches) * noise, vh / batches)
        x = x - lr * (m / (1 - b1**t)) / (vn.sqrt() + eps)
    return x


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", MAKES)
def test_steps_follow_the_equations(name: str, foreach: bool) -> None:
    make = MAKES[name]
    parameter = nn.Parameter(torch.ones(7, dtype=torch.float64))
    optimizer = make([parameter], foreach=foreach)
    ConsistentSecondMoment(optimizer, 16)
    for gradient in gradients(30):
        parameter.grad = gradient
        optimizer.step()
    rule = expected(dict(make.keywords), name == "AdamW", 16)
    torch.testing.assert_close(parameter.data, rule, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batches", [4, 64])
def test_noise_divides_as_that_of_the_whole_batch(batches: int) -> None:
    """One learner's moments tell what Adam would see of N times the batch."""
    generator = torch.Generator().manual_seed(0)
    size, steps, mean = 4000, 3000, 0.05
    own = nn.Parameter(torch.zeros(size))
    optimizer = Adam([own], lr=0.0)
    ConsistentSecondMoment(optimizer, batches)
    for _ in range(steps):
        own.grad = mean + torch.randn(size, generator=generator)
        optimizer.step()
    state = optimizer.state[own]
    vh = state["exp_avg_sq"] / (1 - 0.999**steps)
    sh = state[NOISE] / (1 - 0.999 ** (steps - 1))
    whole = mean**2 + 1 / batches
    assert (vh - (1 - 1 / batches) * sh).mean().item() == pytest.approx(whole, rel=0.05)
    assert vh.mean().item() == pytest.approx(mean**2 + 1, rel=0.02)


def test_gradients_without_noise_are_divided_as_before() -> None:
    pair = [nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    optimizers = [Adam([p], lr=0.01) for p in pair]
    ConsistentSecondMoment(optimizers[1], 16)
    for _ in range(20):
        for parameter, optimizer in zip(pair, optimizers, strict=True):
            parameter.grad = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
            optimizer.step()
    torch.testing.assert_close(pair[0].data, pair[1].data, rtol=1e-12, atol=1e-12)


def test_a_resumed_run_is_the_uninterrupted_one() -> None:
    def steps(parameter: nn.Parameter, optimizer: Adam, which: slice) -> None:
        for gradient in list(gradients(20))[which]:
            parameter.grad = gradient
            optimizer.step()

    one = nn.Parameter(torch.ones(7, dtype=torch.float64))
    whole = Adam([one], lr=0.01)
    ConsistentSecondMoment(whole, 8)
    steps(one, whole, slice(0, 9))
    two = nn.Parameter(one.detach().clone())
    resumed = Adam([two], lr=0.01)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    ConsistentSecondMoment(resumed, 8)
    for parameter, optimizer in ((one, whole), (two, resumed)):
        steps(parameter, optimizer, slice(9, 20))
    assert torch.equal(one, two)


def test_stock_adam_goes_on_from_its_state_and_after_it_is_closed() -> None:
    parameter = nn.Parameter(torch.ones(7, dtype=torch.float64))
    optimizer = Adam([parameter], lr=0.01)
    moment = ConsistentSecondMoment(optimizer, 8)
    for gradient in gradients(5):
        parameter.grad = gradient
        optimizer.step()
    moment.close()
    other = nn.Parameter(parameter.detach().clone())
    stock = Adam([other], lr=0.01)
    stock.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, made in ((parameter, optimizer), (other, stock)):
        each.grad = torch.ones(7, dtype=torch.float64)
        made.step()
    assert torch.equal(parameter, other)


def test_parameters_without_a_gradient_are_left_alone() -> None:
    used, unused = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Adam([used, unused], lr=0.1)
    ConsistentSecondMoment(optimizer, 4)
    for _ in range(3):
        used.grad = torch.randn(2)
        optimizer.step()
    assert torch.equal(unused.data, torch.ones(2))
    assert NOISE not in optimizer.state[unused]


def test_a_step_with_a_closure_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = Adam([parameter])
    ConsistentSecondMoment(optimizer, 4)
    with pytest.raises(InputError, match="without a closure"):
        optimizer.step(lambda: 0.0)


def test_which_optimizers_can_be_corrected() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert can_correct(Adam([parameter]))
    assert can_correct(AdamW([parameter], fused=True))
    for other in (SGD([parameter], 0.1), NAdam([parameter])):
        assert not can_correct(other)
    assert not can_correct(Adam([parameter], amsgrad=True))
