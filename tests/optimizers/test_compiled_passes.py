"""The compiled pass before an optimizer's step, beside the operations of PyTorch."""

from functools import partial

import pytest
from torch import Tensor

from espnet_distopt.optimizers.second_moment import to_lend
from tests.compiled import SIZES, compare, normal, special


def lend(
    lent: Tensor, v: Tensor, s: Tensor, m: Tensor, g: Tensor, step: float, batches: int
) -> None:
    tensors = [lent], [v], [s], [m], [g]
    to_lend(*tensors, step=step, betas=(0.9, 0.98), batches=batches)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("batches", [1, 2, 16])
@pytest.mark.parametrize("step", [1, 2, 500])
def test_what_is_lent_is_that_of_pytorch(
    step: int, batches: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [special(normal(seed, size), 7 * seed) for seed in range(5)]
    tensors[1:3] = [tensor.abs() for tensor in tensors[1:3]]  # v and s are squares
    function = partial(lend, step=step, batches=batches)
    function.__module__ = to_lend.__module__  # type: ignore[attr-defined]
    compare(monkeypatch, function, *tensors)
