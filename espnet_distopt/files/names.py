"""Short names of directories in tables and pictures."""

from collections.abc import Sequence
from pathlib import Path


def distinguishing_names(directories: Sequence[Path]) -> list[str]:
    """Return of each directory as many last parts as tell it from all the others.

    A directory that is given twice has the same name twice.

    Example:
        >>> distinguishing_names([Path("/exp/a"), Path("/exp/b"), Path("/old/b")])
        ['a', 'exp/b', 'old/b']
    """
    known = [directory.resolve().parts for directory in directories]
    names = []
    for own in known:
        others = [parts for parts in known if parts != own]
        count = next(
            (n for n in range(1, len(own)) if all(o[-n:] != own[-n:] for o in others)),
            len(own),
        )
        names.append(str(Path(*own[-count:])))
    return names
