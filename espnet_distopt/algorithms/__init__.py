"""The algorithms, by name, each with the options it takes.

Those of this package are in `ALGORITHMS`. Other packages add theirs by entry points
(`plugins`); they are loaded when somebody first asks for an algorithm.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from espnet_distopt.algorithms.adasum import Adasum, AdasumConfig
from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.block.bmuf import Bmuf
from espnet_distopt.algorithms.block.options import (
    BmufAdamConfig,
    BmufConfig,
    DilocoConfig,
    LocalSgdConfig,
    SlowMoConfig,
)
from espnet_distopt.algorithms.gossip.adpsgd import Adpsgd, AdpsgdConfig
from espnet_distopt.algorithms.gossip.hadpsgd import Hadpsgd, HadpsgdConfig
from espnet_distopt.algorithms.options import algorithm_options, configure
from espnet_distopt.algorithms.plugins import Plugins, Registration, load_plugins
from espnet_distopt.algorithms.synchronous.allreduce import AllReduce, AllReduceConfig
from espnet_distopt.algorithms.synchronous.d1d import (
    D1dGrad,
    D1dGradConfig,
    D1dModel,
    D1dModelConfig,
)
from espnet_distopt.algorithms.synchronous.dpsgd import Dpsgd, DpsgdConfig
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError, did_you_mean

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Registration",
    "build",
    "check",
    "check_options",
    "lookup",
    "names",
]

ALGORITHMS: dict[str, Registration] = {
    "allreduce": Registration(AllReduce, AllReduceConfig),
    "adpsgd": Registration(Adpsgd, AdpsgdConfig),
    "hadpsgd": Registration(Hadpsgd, HadpsgdConfig),
    "bmuf": Registration(Bmuf, BmufConfig),
    "bmuf_adam": Registration(Bmuf, BmufAdamConfig),
    "local_sgd": Registration(Bmuf, LocalSgdConfig),
    "slowmo": Registration(Bmuf, SlowMoConfig),
    "diloco": Registration(Bmuf, DilocoConfig),
    "adasum": Registration(Adasum, AdasumConfig),
    "dpsgd": Registration(Dpsgd, DpsgdConfig),
    "d1d_model": Registration(D1dModel, D1dModelConfig),
    "d1d_grad": Registration(D1dGrad, D1dGradConfig),
}
"""Name -> algorithm, of those that this package has itself."""


def _plugins() -> Plugins:
    return load_plugins(frozenset(ALGORITHMS))


def names() -> list[str]:
    """Return the names of all algorithms: this package's, then those of others."""
    return [*ALGORITHMS, *_plugins().loaded]


def lookup(name: str) -> Registration:
    """Return the class of algorithm `name`, and that of its options.

    Raises:
        InputError: there is none of that name, or the package that has it does not
            load.
    """
    plugins = _plugins()
    if name in plugins.failed:
        raise InputError(
            f"{plugins.failed[name]}; mend or remove the package, or use another "
            "algorithm"
        )
    known = {**plugins.loaded, **ALGORITHMS}
    if name not in known:
        raise InputError(
            f"unknown algorithm '{name}'; there are: {', '.join(sorted(known))}"
            f"{did_you_mean(name, known)}"
        )
    return known[name]


def _configured(
    name: str, conf: Mapping[str, Any], size: int
) -> tuple[Registration, Any]:
    """Return algorithm `name` and its checked options."""
    found = lookup(name)
    config = configure(found.config, conf, where=f"options of {name}")
    if size < 1:
        raise InputError(f"the number of learners must be >= 1, not {size}")
    found.algorithm.check_size(config, size)
    return found, config


def check(name: str, conf: Mapping[str, Any], size: int) -> None:
    """Raise InputError if `name` with options `conf` cannot run on `size` learners."""
    _configured(name, conf, size)


def check_options(algorithm: str, conf: Mapping[str, Any], size: int) -> None:
    """Raise InputError if `size` learners cannot have sessions with options `conf`.

    Args:
        algorithm: the name of the algorithm.
        conf: its options, and those of the session.
        size: number of learners, N.
    """
    check(algorithm, algorithm_options(conf), size)


def options(name: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of algorithm `name`: those given, and the defaults.

    Raises:
        InputError: unknown name, unknown or ill-typed option.
    """
    given = configure(lookup(name).config, conf, where=f"options of {name}")
    return dataclasses.asdict(given)


def build(name: str, conf: Mapping[str, Any], learner: Learner) -> Algorithm:
    """Return algorithm `name` for one learner.

    Raises:
        InputError: unknown name, unknown or ill-typed option, impossible size.
    """
    found, config = _configured(name, conf, learner.size)
    return found.algorithm(config, learner)
