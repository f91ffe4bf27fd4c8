"""The algorithms, by name, each with the options it takes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from espnet_distopt.algorithms.adasum.algorithm import Adasum, AdasumConfig
from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.block.bmuf import Bmuf, BmufAdamConfig, BmufConfig
from espnet_distopt.algorithms.block.diloco import DilocoConfig
from espnet_distopt.algorithms.block.local_sgd import LocalSgdConfig
from espnet_distopt.algorithms.block.slowmo import SlowMoConfig
from espnet_distopt.algorithms.gossip.adpsgd import Adpsgd, AdpsgdConfig
from espnet_distopt.algorithms.gossip.hadpsgd import Hadpsgd, HadpsgdConfig
from espnet_distopt.algorithms.options import configure
from espnet_distopt.algorithms.synchronous.allreduce import AllReduce, AllReduceConfig
from espnet_distopt.algorithms.synchronous.d1d import (
    D1dGrad,
    D1dGradConfig,
    D1dModel,
    D1dModelConfig,
)
from espnet_distopt.algorithms.synchronous.dpsgd import Dpsgd, DpsgdConfig
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

__all__ = ["ALGORITHMS", "Algorithm", "build", "check", "lookup"]

ALGORITHMS: dict[str, tuple[type[Any], type[Any]]] = {
    "allreduce": (AllReduce, AllReduceConfig),
    "adpsgd": (Adpsgd, AdpsgdConfig),
    "hadpsgd": (Hadpsgd, HadpsgdConfig),
    "bmuf": (Bmuf, BmufConfig),
    "bmuf_adam": (Bmuf, BmufAdamConfig),
    "local_sgd": (Bmuf, LocalSgdConfig),
    "slowmo": (Bmuf, SlowMoConfig),
    "diloco": (Bmuf, DilocoConfig),
    "adasum": (Adasum, AdasumConfig),
    "dpsgd": (Dpsgd, DpsgdConfig),
    "d1d_model": (D1dModel, D1dModelConfig),
    "d1d_grad": (D1dGrad, D1dGradConfig),
}
"""Name -> (algorithm class, class of its options)."""


def lookup(name: str) -> tuple[type[Any], type[Any]]:
    """Return the class of algorithm `name`, and that of its options.

    Raises:
        InputError: there is none of that name.
    """
    if name not in ALGORITHMS:
        names = ", ".join(sorted(ALGORITHMS))
        raise InputError(f"unknown algorithm '{name}'; there are: {names}")
    return ALGORITHMS[name]


def _configured(name: str, conf: Mapping[str, Any], size: int) -> tuple[type[Any], Any]:
    """Return the class of algorithm `name` and its checked options."""
    algorithm, config_class = lookup(name)
    config = configure(config_class, conf, where=f"distopt_conf of {name}")
    if size < 1:
        raise InputError(f"the number of learners must be >= 1, not {size}")
    algorithm.check_size(config, size)
    return algorithm, config


def check(name: str, conf: Mapping[str, Any], size: int) -> None:
    """Raise InputError if `name` with options `conf` cannot run on `size` learners."""
    _configured(name, conf, size)


def options(name: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of algorithm `name`: those given, and the defaults.

    Raises:
        InputError: unknown name, unknown or ill-typed option.
    """
    config_class = lookup(name)[1]
    given = configure(config_class, conf, where=f"distopt_conf of {name}")
    return dataclasses.asdict(given)


def build(name: str, conf: Mapping[str, Any], learner: Learner) -> Algorithm:
    """Return algorithm `name` for one learner.

    Raises:
        InputError: unknown name, unknown or ill-typed option, impossible size.
    """
    algorithm, config = _configured(name, conf, learner.size)
    built: Algorithm = algorithm(config, learner)
    return built
