"""What a user does with an optimizer whose second moment is corrected."""

import importlib
import io
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from espnet_distopt.optimizers.consistent import (
    NOISE,
    ConsistentSecondMoment,
    can_correct,
    correct,
)
from espnet_distopt.optimizers.lamb import Lamb
from tests.optimizers.moment_oracle import gradients

MAKES: dict[str, Callable[..., Any]] = {
    "Adam": partial(Adam, lr=0.01),
    "foreach": partial(Adam, lr=0.01, foreach=True, weight_decay=0.1),
    "fused": partial(AdamW, lr=0.01, fused=True),
    "NAdam": partial(NAdam, lr=0.01),
    "RAdam": partial(RAdam, lr=0.01),
}

GRADIENTS = [gradient.float() for gradient in gradients(20)]


def begin(make: Callable[..., Any], batches: int = 8) -> tuple[nn.Parameter, Any]:
    """Return a parameter and its optimizer, whose second moment is corrected."""
    parameter = nn.Parameter(torch.ones(7))
    optimizer = make([parameter])
    ConsistentSecondMoment(optimizer, batches)
    return parameter, optimizer


def walk(parameter: nn.Parameter, optimizer: Optimizer, which: slice) -> None:
    for gradient in GRADIENTS[which]:
        parameter.grad = gradient.clone()
        optimizer.step()


def saved(optimizer: Optimizer) -> Any:
    """Return what a checkpoint holds of the optimizer."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one: Optimizer, two: Optimizer) -> bool:
    """Return whether two optimizers have the same state, bit for bit."""
    pairs = zip(one.state.values(), two.state.values(), strict=True)
    return all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
        for a, b in pairs
    )


@pytest.mark.parametrize("name", MAKES)
def test_a_resumed_run_is_the_uninterrupted_one(name: str) -> None:
    one, whole = begin(MAKES[name])
    walk(one, whole, slice(0, 9))
    two, resumed = begin(MAKES[name])
    two.data.copy_(one.data)
    resumed.load_state_dict(saved(whole))
    for each in ((one, whole), (two, resumed)):
        walk(*each, slice(9, 20))
    assert torch.equal(one, two) and same(whole, resumed)


@pytest.mark.parametrize("name", MAKES)
def test_stock_goes_on_from_a_checkpoint_and_after_the_correction_ends(
    name: str,
) -> None:
    parameter = nn.Parameter(torch.ones(7))
    optimizer = MAKES[name]([parameter])
    moment = ConsistentSecondMoment(optimizer, 8)
    walk(parameter, optimizer, slice(0, 9))
    moment.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    other = nn.Parameter(parameter.detach().clone())
    stock = MAKES[name]([other])
    stock.load_state_dict(saved(optimizer))
    for each in ((parameter, optimizer), (other, stock)):
        walk(*each, slice(9, 20))
    assert torch.equal(parameter, other) and same(optimizer, stock)


@pytest.mark.parametrize("name", [n for n in MAKES if n not in ("foreach", "fused")])
def test_the_state_between_steps_is_that_of_the_stock_optimizer(name: str) -> None:
    """Moments do not depend on the parameters here, so they are the same bits."""
    one, corrected = begin(MAKES[name])
    two = nn.Parameter(torch.ones(7))
    stock = MAKES[name]([two])
    for each in ((one, corrected), (two, stock)):
        walk(*each, slice(0, 20))
    for key, value in stock.state[two].items():
        assert torch.equal(value, corrected.state[one][key]), key
    assert not torch.equal(one, two)


def test_one_batch_changes_nothing() -> None:
    optimizer = Adam([nn.Parameter(torch.ones(2))])
    assert correct(optimizer, 1) is None
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("keyword", [False, True])
def test_a_step_with_a_closure_is_the_step_without(name: str, keyword: bool) -> None:
    one, plain = begin(MAKES[name])
    walk(one, plain, slice(0, 20))
    two, optimizer = begin(MAKES[name])
    calls = 0
    for gradient in GRADIENTS:

        def closure(gradient: Tensor = gradient) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss: Tensor = (two * gradient).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        value = (two * gradient).sum().item()
        made = {"closure": closure} if keyword else {}
        loss = optimizer.step(**made) if keyword else optimizer.step(closure)
        assert loss.item() == value
    assert calls == 20
    assert torch.equal(one, two)


def test_a_hook_of_the_users_may_change_the_gradients() -> None:
    """The correction goes by what the optimizer uses, not by what came before."""

    def clip(optimizer: Optimizer, *_: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.clamp_(-0.5, 0.5)

    one, hooked = begin(MAKES["Adam"])
    hooked.register_step_pre_hook(clip)
    walk(one, hooked, slice(0, 20))
    two, by_hand = begin(MAKES["Adam"])
    for gradient in GRADIENTS:
        two.grad = gradient.clamp(-0.5, 0.5)
        by_hand.step()
    assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["Adam", "fused"])
def test_a_grad_scaler(name: str) -> None:
    one, plain = begin(MAKES[name])
    two, scaled = begin(MAKES[name])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # type: ignore[attr-defined]
    walk(one, plain, slice(0, 20))
    for step, gradient in enumerate(GRADIENTS):
        for factor in (torch.inf, 1.0) if step == 7 else (1.0,):
            scaled.zero_grad()
            scaler.scale((two * gradient).sum() * factor).backward()
            scaler.step(scaled)
            scaler.update()
    assert torch.equal(one, two) and same(plain, scaled)  # Scales are powers of two.


def test_a_step_that_fails_leaves_the_optimizer_its_own_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    parameter = nn.Parameter(torch.ones(7))
    optimizer = Adam([parameter])
    moment = ConsistentSecondMoment(optimizer, 8)
    walk(parameter, optimizer, slice(0, 9))
    own = optimizer.state[parameter]["exp_avg_sq"]
    adam = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "adam", fail)  # what the step computes with
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    assert optimizer.state[parameter]["exp_avg_sq"] is not own
    moment.close()
    assert optimizer.state[parameter]["exp_avg_sq"] is own


def test_a_state_of_the_stock_optimizer_begins_as_it_was() -> None:
    """What is not known of the noise yet is not taken away from v."""
    parameter = nn.Parameter(torch.ones(7))
    optimizer = Adam([parameter], lr=0.01)
    walk(parameter, optimizer, slice(0, 10))
    other = nn.Parameter(parameter.detach().clone())
    corrected = Adam([other], lr=0.01)
    corrected.load_state_dict(saved(optimizer))
    ConsistentSecondMoment(corrected, 8)
    start = parameter.detach().clone()
    for each in ((parameter, optimizer), (other, corrected)):
        walk(*each, slice(10, 11))
    stock, mine = ((p.detach() - start).abs() for p in (parameter, other))
    assert (stock <= mine).all() and (mine < 1.3 * stock).all()
    assert NOISE in corrected.state[other]


class OwnStep(Adam):
    """Steps as Adam does, by a step of its own that calls Adam's."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class OtherName(Adam):
    """Steps as Adam does, by Adam's own step."""


def test_which_optimizers_can_be_corrected(caplog: pytest.LogCaptureFixture) -> None:
    parameter = nn.Parameter(torch.ones(2))
    for make in MAKES.values():
        assert can_correct(make([parameter]))
    assert can_correct(OtherName([parameter]))
    half = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    others: list[Optimizer] = [
        RMSprop([parameter]),
        Adagrad([parameter]),
        Lamb([parameter]),
        Adam([parameter], amsgrad=True),
        Adam([half]),
        Adam([parameter], betas=(0.9, 0.0)),
        OwnStep([parameter]),
    ]
    for optimizer in others:
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            assert correct(optimizer, 4) is None
            assert correct(optimizer, 4, warns=False) is None
        (line,) = caplog.messages
        assert f"not known for this {type(optimizer).__name__} (" in line
        assert "\n" not in line and not optimizer._optimizer_step_pre_hooks
    caplog.clear()
    assert correct(SGD([parameter], 0.1), 4) is None
    assert not caplog.messages
