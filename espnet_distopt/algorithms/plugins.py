"""Algorithms that other installed packages add, by an entry point each.

A package names them in its metadata, in the group `espnet_distopt.algorithms`:

    [project.entry-points."espnet_distopt.algorithms"]
    clipped_mean = "clipped_mean:registration"

The name is what a user asks for; the object that it leads to is a `Registration`.
"""

import functools
import inspect
import logging
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.errors import InputError, message

GROUP = "espnet_distopt.algorithms"


@dataclass(frozen=True)
class Registration:
    """What the registry knows of an algorithm.

    Attributes:
        algorithm: the subclass of `Algorithm`.
        config: the dataclass of its options; each option has a default.

    Raises:
        InputError: either of them is something else, or a program of the algorithm
            does not yield.
    """

    algorithm: type[Algorithm]
    config: type[Any]

    def __post_init__(self) -> None:
        # What another package registers may be anything.
        made: Any = self.algorithm
        if not (isinstance(made, type) and issubclass(made, Algorithm)):
            raise InputError(f"{made!r} is not a subclass of Algorithm")
        yields = inspect.isgeneratorfunction
        for name in [each for each, its in vars(Algorithm).items() if yields(its)]:
            if not yields(getattr(made, name)):
                raise InputError(
                    f"{made.__name__}.{name} is no generator: a program yields what it "
                    "sends, and has `yield from ()` if that is nothing"
                )
        if not (isinstance(self.config, type) and is_dataclass(self.config)):
            raise InputError(f"{self.config!r}, the options, is not a dataclass")


@dataclass(frozen=True)
class Plugins:
    """The algorithms of other packages.

    Attributes:
        loaded: name -> registration.
        failed: name -> why the algorithm cannot be used, in one line.
    """

    loaded: dict[str, Registration] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@functools.cache
def load_plugins(taken: frozenset[str]) -> Plugins:
    """Load the algorithms of all installed packages, once in a process.

    A package that does not load must not keep others from training, so a failure is
    logged, and whoever asks for the algorithm by its name is told the reason.
    """
    plugins, log = Plugins(), logging.getLogger(__name__)
    # By package, so that all learners take the same one of two equal names.
    for point in sorted(entry_points(group=GROUP), key=lambda p: (_package(p), p.name)):
        name = point.name
        where = f"algorithm '{name}' of package {_package(point)} ({point.value})"
        if name in taken or name in plugins.loaded or name in plugins.failed:
            log.warning(f"{where} is refused: the name is taken")
            continue
        try:
            plugins.loaded[name] = _load(point)
        # Whatever the package's own code raises, learners of other algorithms go on.
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {message(error)}".split())
            plugins.failed[name] = f"{where} does not load: {reason}"
            log.warning(plugins.failed[name])
    return plugins


def _load(point: EntryPoint) -> Registration:
    found = point.load()
    if not isinstance(found, Registration):
        raise TypeError(f"{point.value} is a {type(found).__name__}, no Registration")
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "?"
