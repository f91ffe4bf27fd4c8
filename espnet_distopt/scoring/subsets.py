"""The halves of a test set, which are parts that are scored by themselves."""

import re
from collections.abc import Iterable

from espnet_distopt.errors import InputError

ALL = "all"
"""The name of the whole set in results."""


def parse_halves(arguments: Iterable[str]) -> dict[str, str]:
    """Return the regular expression of each half, from arguments `NAME=REGEX`.

    Raises:
        InputError: An argument is malformed, or a name comes twice.
    """
    halves: dict[str, str] = {}
    for argument in arguments:
        name, equals, pattern = argument.partition("=")
        if not (name and equals and pattern) or name == ALL:
            raise InputError(f"--half {argument}: expected NAME=REGEX, as swbd=^sw_")
        if name in halves:
            raise InputError(f"--half {argument}: {name} is given twice")
        halves[name] = pattern
    return halves


def members(name: str, pattern: str, ids: Iterable[str]) -> list[str]:
    """Return the ids in which the half's regular expression is found.

    Raises:
        InputError: The pattern is no regular expression, or no id matches.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"half {name}: '{pattern}' is no regular expression: {error}"
        ) from None
    ids = list(ids)
    chosen = [each for each in ids if expression.search(each)]
    if not chosen:
        raise InputError(
            f"half {name}: no id matches '{pattern}', an id looks like {ids[0]}"
        )
    return chosen
