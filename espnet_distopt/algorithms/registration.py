"""An algorithm and the class of its options, as one typed pair."""

from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, Protocol, TypeVar

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

Config = TypeVar("Config")
ConfigIn = TypeVar("ConfigIn", contravariant=True)


class AlgorithmClass(Protocol[ConfigIn]):
    """A subclass of `Algorithm` whose instances are made of options and a learner."""

    wants_gossip: bool
    survives: bool

    def __call__(self, config: ConfigIn, learner: Learner) -> Algorithm:
        """Return the algorithm of one learner."""

    def check_size(self, config: Any, size: int) -> None:
        """Raise InputError if, with `config`, it cannot run on `size` learners."""


@dataclass(frozen=True)
class Registration(Generic[Config]):
    """What the registry knows of an algorithm.

    Attributes:
        algorithm: the subclass of `Algorithm`.
        config: the dataclass of its options; each option has a default.

    Raises:
        InputError: either of them is something else.
    """

    algorithm: AlgorithmClass[Config]
    config: type[Config]

    def __post_init__(self) -> None:
        made = self.algorithm
        if not (isinstance(made, type) and issubclass(made, Algorithm)):
            raise InputError(f"{made!r} is not a subclass of Algorithm")
        if not (isinstance(self.config, type) and is_dataclass(self.config)):
            raise InputError(f"{self.config!r}, the options, is not a dataclass")
