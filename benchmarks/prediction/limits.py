"""The module asks how near any constants of the model could come to published rows.

A prediction is calibrated on few rows. Here all constants are free, even the compute
time of each size, and those are taken with which the worst row is best. What remains is
an error of the model's form, or of the rows themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from prediction.methods import step_seconds
from prediction.published import Method, PublishedCluster

RATIO = 1.2
"""The quotient of two neighbouring values of a constant that is tried."""

SECONDS = [0.5e-3 * RATIO**k for k in range(27)]
"""The times of a model through a card or a bus that are tried: 0.5 to 57 ms."""

OVERLAPS = [tenths / 10 for tenths in range(1, 10)]

Place = tuple[float, float, float]
"""An overlap factor, and the seconds of a model through the card and the bus."""


@dataclass(frozen=True, kw_only=True)
class Least:
    """The least worst error, and the constants that have it.

    Attributes:
        error: the size of the worst error.
        overlap: DDP's overlap factor, one for all clusters.
        cards: the seconds of a model through the card, by cluster.
        buses: those through the bus, by cluster.
    """

    error: float
    overlap: float
    cards: dict[str, float]
    buses: dict[str, float]


Errors = dict[str, dict[Place, float]]
"""Cluster name -> constants -> the size of the worst error."""


def worst_errors(
    clusters: Sequence[PublishedCluster], methods: Sequence[Method]
) -> Errors:
    """Return the worst error of each cluster with each choice of constants.

    Args:
        clusters: the clusters.
        methods: the methods whose rows count.
    """
    return {
        cluster.name: {
            place: max(
                _balanced(cluster, size, methods, place) for size in cluster.steps
            )
            for place in product(OVERLAPS, SECONDS, SECONDS)
        }
        for cluster in clusters
    }


def least_worst(worst: Errors, one_card: bool) -> Least:
    """Return the least worst error over all clusters.

    Args:
        worst: what `worst_errors` has returned.
        one_card: whether the cards of all clusters take equally long for a model.
    """
    cards = [[card] for card in SECONDS] if one_card else [SECONDS]
    return min(
        (_best(worst, *choice) for choice in product(OVERLAPS, cards)),
        key=lambda least: least.error,
    )


def _best(worst: Errors, overlap: float, cards: list[float]) -> Least:
    """Return the best constants with this overlap factor, among these cards."""
    found = {
        name: min(product([overlap], cards, SECONDS), key=errors.__getitem__)
        for name, errors in worst.items()
    }
    return Least(
        error=max(worst[name][place] for name, place in found.items()),
        overlap=overlap,
        cards={name: place[1] for name, place in found.items()},
        buses={name: place[2] for name, place in found.items()},
    )


def _balanced(
    cluster: PublishedCluster, learners: int, methods: Sequence[Method], place: Place
) -> float:
    """Return the worst error of a size, with the compute time that makes it least.

    All predictions grow with the compute time, so that it is the one at which the
    largest error upwards equals the largest one downwards.
    """
    overlap, card, bus = place
    published = [cluster.steps[learners][method] * 1e-3 for method in methods]

    def errors(compute: float) -> Iterable[float]:
        for method, seconds in zip(methods, published, strict=True):
            arguments = cluster.per_node, learners, compute, card, bus
            yield step_seconds(method, *arguments, overlap) / seconds - 1

    low, high = 0.0, 2 * max(published)
    for _ in range(12):
        middle = (low + high) / 2
        found = list(errors(middle))
        if max(found) + min(found) > 0:
            high = middle
        else:
            low = middle
    return max(map(abs, errors(high)))
