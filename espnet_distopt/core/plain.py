"""The switch for what this package changes in other people's code to be faster.

`docs/private_parts.md` lists these changes.
"""

import logging
import os

PLAIN = "DISTOPT_PLAIN"
"""The variable of the environment that switches all of them off if it is 1."""


def is_plain() -> bool:
    """Return whether other people's code is to be used as it is."""
    return os.environ.get(PLAIN, "0") not in ("", "0")


def fall_back(what: str, reason: str) -> None:
    """Log that the plain way is taken, as something is not as it was expected."""
    logging.getLogger(__name__).warning(
        f"{what}: done the plain way, which is slower ({reason})"
    )
