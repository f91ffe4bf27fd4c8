"""The names of a recording's channels in NIST's files."""

import re

from espnet_distopt.errors import InputError


def read_channel(name: str, where: str) -> str:
    """Return a channel's name in capitals: a letter, or a number.

    The scorer takes both, and does not tell small letters from capitals. Telephone
    recordings have A and B, or 1 and 2.

    Args:
        name: The name in a file.
        where: The place that messages name, `file:line`.

    Raises:
        InputError: It is neither a letter nor a number.
    """
    if not re.fullmatch("[A-Za-z]|[0-9]+", name):
        raise InputError(f"{where}: expected a channel such as A or B, got {name}")
    return name.upper()


def with_capital_channels(text: str) -> str:
    """Return the text of an STM or a CTM with its channels in capitals.

    sclite takes small letters, too. But hubscr sorts `a` behind `B`. A reference and
    recognized words that use both then differ in their order, at which sclite fails.

    >>> with_capital_channels(";; a comment\\nsw_1 a 0.5 0.1 a\\n")
    ';; a comment\\nsw_1 A 0.5 0.1 a\\n'
    """
    return re.sub(
        r"^(?!;;)([ \t]*\S+[ \t]+)([a-z])(?=[ \t])",
        lambda found: found[1] + found[2].upper(),
        text,
        flags=re.MULTILINE,
    )
