"""The compiled passes over a snapshot, beside the operations of PyTorch."""

import pytest
import torch

from espnet_distopt.algorithms.gossip.snapshot import _correct, _subtract
from tests.compiled import SIZES, compare, normal, special


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", [_correct, _subtract])
def test_a_pass_is_that_of_pytorch(
    function: object, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(function)
    tensors = [special(normal(seed, size), 7 * seed) for seed in range(2)]
    compare(monkeypatch, function, *tensors)


def test_the_corrections_of_two_learners_are_exact_negatives() -> None:
    ours, theirs = (normal(seed, SIZES[1]).float() for seed in range(2))
    one, other = theirs.clone(), ours.clone()
    _subtract(one, ours.clone())
    _subtract(other, theirs.clone())
    assert torch.equal(one, -other)
