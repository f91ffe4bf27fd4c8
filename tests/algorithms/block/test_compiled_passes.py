"""The compiled passes at the end of a block, beside the operations of PyTorch."""

from functools import partial

import pytest
import torch
from torch import Tensor

from espnet_distopt.algorithms.block import block_filter, delayed
from espnet_distopt.algorithms.block.block_filter import BlockFilter
from espnet_distopt.algorithms.block.delayed import LateAverage
from espnet_distopt.algorithms.block.extrapolation import extrapolate, replace_late
from espnet_distopt.algorithms.block.message import Agreed
from espnet_distopt.algorithms.block.rule import BlockRule
from espnet_distopt.core.compiled import passes_of
from tests.compiled import SIZES, compare, forget_numba, normal, special

RULES = {
    "nbm": BlockRule(momentum=0.75, nesterov=True),
    "cbm": BlockRule(momentum=0.75, block_lr=1.5),
}


def filtered(
    rule: BlockRule, mean: Tensor, params: Tensor, delta: Tensor, theta: Tensor
) -> None:
    """End a block that has begun with a look-ahead, and copy what the filter keeps."""
    kept = BlockFilter(rule, params, 4, None)
    kept.delta.copy_(delta)
    kept.lookahead = 0.5
    kept.end_block(mean, rule, Agreed(0.0, 4.0, False, 0.0, [], []))
    delta.copy_(kept.delta)
    theta.copy_(kept.theta)


filtered.__module__ = block_filter.__name__


def replaced(params: Tensor, snapshot: Tensor, start: Tensor) -> None:
    LateAverage(0).replace(params, snapshot, start, updates=1)


replaced.__module__ = delayed.__name__


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rule", RULES)
def test_the_filter(rule: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [special(normal(seed, size), 7 * seed) for seed in range(4)]
    compare(monkeypatch, _named(partial(filtered, RULES[rule]), filtered), *tensors)


@pytest.mark.parametrize("size", SIZES)
def test_the_late_start(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [special(normal(seed, size), 7 * seed) for seed in range(3)]
    compare(monkeypatch, replaced, *tensors)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("floor", [None, 0.0, 0.3])
@pytest.mark.parametrize("gain", [0.0, 0.7, 2.5])
def test_an_extrapolated_moment(
    gain: float, floor: float | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [special(normal(seed, size), 7 * seed) for seed in range(2)]
    if floor is not None:
        tensors = [tensor.abs() for tensor in tensors]
    function = _named(partial(extrapolate, gain=gain, floor=floor), extrapolate)
    compare(monkeypatch, function, *tensors)


@pytest.mark.parametrize("floor", [None, 0.3])
@pytest.mark.parametrize("gain", [0.7, 6.8])
def test_an_extrapolated_moment_has_the_same_bits_without_numba(
    gain: float, floor: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner without it, or with more threads, must not part from the others."""
    package = extrapolate.__module__.rpartition(".")[0]
    mean, start = (normal(seed, SIZES[1]).float().abs() for seed in range(2))
    compiled, plain = start.clone(), start.clone()
    passes_of.cache_clear()
    assert passes_of(package) is not None
    extrapolate(mean, compiled, gain, floor)
    forget_numba(monkeypatch, package)
    extrapolate(mean, plain, gain, floor)
    passes_of.cache_clear()
    assert torch.equal(compiled, plain)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("positive", [False, True])
def test_a_late_moment(
    positive: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [special(normal(seed, size), 7 * seed) for seed in range(3)]
    tensors = [tensor.abs() if positive else tensor for tensor in tensors]
    function = partial(replace_late, share=0.7, positive=positive)
    compare(monkeypatch, _named(function, replace_late), *tensors)


def test_a_late_second_moment_never_becomes_negative() -> None:
    live = torch.full((SIZES[1],), 0.5)
    replace_late(live, torch.zeros_like(live), torch.ones_like(live), 0.7, True)
    assert not live.any()


def _named(function: partial[None], of: object) -> partial[None]:
    function.__module__ = of.__module__
    return function
