"""The module numbers the arithmetic of methods, so that no result survives a change.

A result that a file keeps holds as long as the method computes the same. Whoever
changes what a method computes raises its number here, and its cells are computed again.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from espnet_distopt.algorithms import ALGORITHMS

VERSIONS: dict[str, int] = {
    "second_moment consistent": 2,  # Learners measure the share of noise they own.
    # The noise's estimate has the weight of the step counts that momentum moves ahead.
    "bmuf_adam second_moment consistent": 2,
    "local_sgd moments average": 2,  # The noise of averaged moments is that of a mean.
    "slowmo": 4,  # Momentum sets in by itself, and the second moment is corrected.
    # While momentum sets in, first moments are extrapolated as far as it has.
    "bmuf_adam warmup None": 2,
    "warmup None": 2,  # Block momentum sets in by itself; it was there at once.
}
"""The name of an algorithm, an option with its value, or both -> its number, from 1."""


def versions(
    algorithm: str, options: Iterable[tuple[str, Any]], optimizer: str = "adam"
) -> dict[str, int]:
    """Return the numbers above 1 that concern a method.

    An option that is not given has its default, whose number counts as well. A number
    of 1 is left out, so that a new entry above leaves old results valid.

    Args:
        algorithm: the name of the algorithm, or `none` for the stock training.
        options: (name, value) of its options.
        optimizer: the optimizer; only Adam's second moment is corrected.
    """
    known = ALGORITHMS.get(algorithm)
    defaults = {o.name: o.default for o in fields(known.config)} if known else {}
    chosen = [f"{name} {value}" for name, value in (defaults | dict(options)).items()]
    named = [algorithm, *chosen, *(f"{algorithm} {each}" for each in chosen)]
    if optimizer != "adam":
        named = [name for name in named if "second_moment" not in name]
    return {name: VERSIONS[name] for name in named if VERSIONS.get(name, 1) > 1}
