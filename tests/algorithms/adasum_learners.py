"""Virtual learners of several parameter tensors, and Adasum's tree in float64."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from espnet_distopt.simulation import VirtualLearner
from tests.virtual import started

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
TINY = 1.4916681462400413e-154


class Layers(nn.Module):
    """Parameter tensors of given sizes, all zero."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ParameterList(
            nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes
        )


def plain_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=1.0)


def moves(model: Layers, vector: Tensor) -> Callable[[int], float]:
    """Gradients by which SGD of rate 1 moves all parameters along `vector` (P,)."""

    def gradient(_: int) -> float:
        parts = vector.split([p.numel() for p in model.layers])
        products = [-(x * p).sum() for x, p in zip(model.layers, parts, strict=True)]
        torch.stack(products).sum().backward()  # type: ignore[no-untyped-call]
        return 0.0

    return gradient


def adasum(
    vectors: Sequence[Tensor], sizes: Sequence[int] | None = None, **options: Any
) -> Tensor:
    """Adasum of one vector (P,) per learner, by the algorithm in a simulation."""
    sizes = [len(vectors[0])] if sizes is None else sizes
    learners = []
    for rank, vector in enumerate(vectors):
        model = Layers(sizes, vector.dtype)
        parts = model, plain_sgd(model.parameters()), moves(model, vector)
        size = len(vectors)
        learners.append(VirtualLearner(*parts, "adasum", rank, size, **options))
    started(learners).epoch(1)
    first = learners[0].learner.params
    for virtual in learners:
        assert same_bits(virtual.learner.params, first)
    return first.clone()


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.numpy().tobytes() == b.numpy().tobytes()


def _coefficient(v: Tensor, other: Tensor) -> float:
    square = float(v @ v)
    return 1.0 if square < TINY else 1 - float(v @ other) / (2 * square)


def tree(vectors: Sequence[Tensor], remainders: list[float] | None = None) -> Tensor:
    """Combine adjacent pairs, level by level; an odd last one is carried up.

    Notes how long each partial result is beside the terms of its sum.
    """
    level = [(v.double(), float(v.double().norm())) for v in vectors]
    while len(level) > 1:
        above = []
        for (a, terms_a), (b, terms_b) in zip(level[::2], level[1::2], strict=False):
            c, d = _coefficient(a, b), _coefficient(b, a)
            partial, terms = c * a + d * b, abs(c) * terms_a + abs(d) * terms_b
            above.append((partial, terms))
            if remainders is not None and terms > 0:
                remainders.append(float(partial.norm()) / terms)
        level = above + level[2 * len(above) :]
    return level[0][0]


def tree_of_layers(
    vectors: Sequence[Tensor],
    sizes: Sequence[int],
    remainders: list[float] | None = None,
) -> Tensor:
    layers = zip(*(v.split(list(sizes)) for v in vectors), strict=True)
    return torch.cat([tree(layer, remainders) for layer in layers])


def distance(a: Tensor, b: Tensor) -> float:
    """Relative error of `a`."""
    if torch.equal(a, b):
        return 0.0
    return float((a.double() - b).norm() / b.norm()) if b.any() else math.inf
