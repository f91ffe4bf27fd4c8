"""Compares compiled passes with the operations of PyTorch that they stand for."""

import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from espnet_distopt.core.compiled import LEAST, passes_of

Pass = Callable[..., object]

SIZES = [LEAST, LEAST + 13]
"""Numbers of elements for which compiled passes are used, not all of whole vectors."""


def forget_numba(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let a package run as where numba is not installed.

    The caller clears the cache of `passes_of` afterwards.
    """
    passes_of.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, f"{package}.compiled_passes", raising=False)


def compare(monkeypatch: pytest.MonkeyPatch, function: Pass, *tensors: Tensor) -> None:
    """Check a pass over float32 tensors, which it changes in place or not.

    Its results must be as near to those in float64 as PyTorch's are, and finite where
    PyTorch's are.

    Args:
        monkeypatch: puts back what the comparison changes.
        function: the pass; it takes the tensors.
        tensors: float64 tensors that float32 holds exactly.
    """
    package = function.__module__.rpartition(".")[0]
    passes_of.cache_clear()
    assert torch.get_num_threads() == 1
    assert passes_of(package) is not None
    compiled, exact = (
        _after(function, tensors, torch.float32),
        _after(function, tensors),
    )
    forget_numba(monkeypatch, package)
    plain = _after(function, tensors, torch.float32)
    passes_of.cache_clear()
    for ours, theirs, expected in zip(compiled, plain, exact, strict=True):
        assert torch.equal(ours.isfinite(), theirs.isfinite())
        numbers = ours.isfinite()
        scale = expected[numbers].abs() + 1
        ours_off = ((ours[numbers] - expected[numbers]) / scale).abs().max()
        plain_off = ((theirs[numbers] - expected[numbers]) / scale).abs().max()
        assert ours_off <= 2 * plain_off + 1e-7, (float(ours_off), float(plain_off))


def _after(
    function: Pass, tensors: Sequence[Tensor], dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    used = [tensor.to(dtype, copy=True) for tensor in tensors]
    function(*used)
    return [tensor.to(torch.float64) for tensor in used]


def normal(seed: int, size: int) -> Tensor:
    """Return normal random numbers of float32, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator).to(torch.float64)


def special(tensor: Tensor, at: int) -> Tensor:
    """Return `tensor` with a NaN and infinities from the place `at` on."""
    changed = tensor.clone()
    numbers = [torch.nan, torch.inf, -torch.inf]
    changed[at : at + 3] = torch.tensor(numbers, dtype=tensor.dtype)
    return changed
