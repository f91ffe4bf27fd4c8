"""The module has step times that others measured on real clusters.

The source is arXiv 2410.11998, figure 6: a Transformer (big) on WMT14 En-De, with a
fixed batch of 25,000 tokens for all learners together, Adam, and float32 messages.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Method = Literal["ddp", "sgp", "exp", "aer"]
METHODS: tuple[Method, ...] = get_args(Method)
"""All-reduce (DDP); stochastic gradient push on a one-peer exponential graph;
decentralised Adam on such a graph; and on an alternating exponential ring."""

BATCH = 25_000
"""Tokens of a step of all learners together."""


@dataclass(frozen=True)
class PublishedCluster:
    """A cluster and the milliseconds of a step that were measured on it.

    Attributes:
        name: how tables call it.
        per_node: the number of GPUs of a node, each of which is a learner.
        card: the bytes a second of a node's network card, by its name plate.
        steps: number of learners -> method -> milliseconds. Methods that are missing
            were not known when the predictions were made.
    """

    name: str
    per_node: int
    card: float
    steps: dict[int, dict[Method, float]]


def _rows(*columns: tuple[int, list[float]]) -> dict[int, dict[Method, float]]:
    return {size: dict(zip(METHODS, values, strict=False)) for size, values in columns}


T4 = PublishedCluster(
    "8 x T4, 100 Gbit/s InfiniBand",
    8,
    12.5e9,
    _rows(
        (16, [372.5, 425.5, 314.8, 312.3]),
        (32, [225.5, 292.4, 178.8, 178.8]),
        (64, [167.3, 235.5, 123.1, 122.2]),
    ),
)
A100 = PublishedCluster(
    "4 x A100, 100 Gbit/s InfiniBand",
    4,
    12.5e9,
    _rows(
        (8, [73.0, 69.4, 63.4, 61.7]),
        (16, [54.8, 53.0, 46.8, 45.8]),
        (32, [51.5, 50.7, 44.7, 43.7]),
    ),
)
A40 = PublishedCluster(
    "4 x A40, 25 Gbit/s Ethernet",
    4,
    3.125e9,
    _rows((8, [166.1]), (16, [195.5]), (32, [188.5])),
)
