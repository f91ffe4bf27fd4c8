"""What decides whether a pass is compiled, and how it is."""

import importlib
from collections.abc import Callable
from typing import Any

import numba
import pytest
import torch
from torch import Tensor

from espnet_distopt.core.compiled import (
    LEAST,
    THREADS,
    compiled,
    passes_of,
    prepare_compiled,
    run_compiled,
)
from tests.compiled import forget_numba

PACKAGE = "espnet_distopt.algorithms.gossip"


def halves() -> tuple[Tensor, Tensor]:
    return torch.zeros(LEAST), torch.ones(LEAST)


def ran(*tensors: Tensor) -> bool:
    return run_compiled(PACKAGE, "correct", tensors)


def test_large_vectors_are_for_the_compiled_pass() -> None:
    live, difference = halves()
    assert ran(live, difference)
    assert torch.equal(live, torch.full_like(live, 0.5))
    assert torch.equal(difference, live)


def test_a_tensor_of_several_dimensions() -> None:
    live, difference = (half.view(2, -1) for half in halves())
    assert ran(live, difference.requires_grad_())
    assert torch.equal(live, torch.full_like(live, 0.5))


def test_what_the_compiled_pass_is_not_for() -> None:
    live, difference = halves()
    before = live.clone()
    assert not ran(live[1:], difference[1:])  # short
    assert not ran(live.double(), difference)
    assert not ran(live, difference.bfloat16())
    assert not ran(live, torch.ones(2 * LEAST)[::2])
    assert not ran(live.to("meta"), difference.to("meta"))
    assert torch.equal(live, before)


def test_many_threads_are_faster_with_pytorch() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS + 1)
    try:
        assert not ran(*halves())
    finally:
        torch.set_num_threads(before)


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_numba(monkeypatch, PACKAGE)
    assert not ran(*halves())
    passes_of.cache_clear()


def test_imports_ahead_only_what_will_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    passes_of.cache_clear()
    prepare_compiled(PACKAGE, torch.ones(LEAST - 1))
    prepare_compiled(PACKAGE, torch.ones(LEAST, dtype=torch.float64))
    assert not imported
    prepare_compiled(PACKAGE, torch.ones(LEAST))
    assert imported == ["numba", f"{PACKAGE}.compiled_passes"]
    passes_of.cache_clear()


@pytest.mark.parametrize(
    "error",
    [
        ImportError("Numba needs NumPy 2.3 or less. Got NumPy 2.4."),
        ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite"),
    ],
)
def test_a_numba_that_does_not_work_is_done_without(
    error: ImportError,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(name: str) -> object:
        raise error

    passes_of.cache_clear()
    monkeypatch.setattr(importlib, "import_module", fail)
    assert not ran(*halves())
    assert caplog.messages == [
        f"numba cannot be used, so that passes take longer: {error}"
    ]
    passes_of.cache_clear()


def test_compiles_where_no_cache_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a package and a home that are both read-only."""

    def njit(*, cache: bool = False, **options: Any) -> Callable[..., Any]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)  # type: ignore[no-any-return]

    real: Callable[..., Any] = numba.njit
    monkeypatch.setattr(numba, "njit", njit)
    assert compiled(lambda number: number + 1)(1) == 2
