"""The module numbers the arithmetic of methods, so that no result survives a change.

A result that a file keeps holds as long as the method computes the same. Whoever
changes what a method computes raises its number here, and its cells are computed again.
"""

from collections.abc import Iterable
from typing import Any

VERSIONS: dict[str, int] = {
    "second_moment consistent": 1,
}
"""The name of an algorithm, or an option with its value -> its number, from 1."""


def versions(algorithm: str, options: Iterable[tuple[str, Any]]) -> dict[str, int]:
    """Return the numbers above 1 that concern a method.

    A number of 1 is left out, so that a new entry above leaves old results valid.

    Args:
        algorithm: the name of the algorithm.
        options: (name, value) of its options.
    """
    named = [algorithm, *(f"{name} {value}" for name, value in options)]
    return {name: VERSIONS[name] for name in named if VERSIONS.get(name, 1) > 1}
