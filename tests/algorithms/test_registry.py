"""The algorithms by name."""

from typing import Any

import pytest
import torch

from espnet_distopt.algorithms import ALGORITHMS, build, check
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("bmuff", {}, 2, "unknown algorithm 'bmuff'; there are: adasum, adpsgd, allreduce"),
    ("", {}, 2, "unknown algorithm ''"),
    ("bmuf", {"tau": 8}, 2, "options of bmuf: unknown option 'tau'"),
    ("bmuf_adam", {"period": -1}, 2, "options of bmuf_adam: period must be >= 1"),
    ("hadpsgd", {"per_node": 2}, 3, "3 learners do not make nodes of per_node = 2"),
    ("allreduce", {}, 0, "number of learners must be >= 1, not 0"),
]


@pytest.mark.parametrize(("name", "conf", "size", "words"), WRONG)
def test_what_cannot_run_is_refused(
    name: str, conf: dict[str, Any], size: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check(name, conf, size)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 64])
def test_every_algorithm_is_built_by_name(name: str, size: int) -> None:
    check(name, {}, size)
    model = torch.nn.Linear(2, 2)
    learner = Learner(model, torch.optim.Adam(model.parameters()), 0, size, per_node=1)
    algorithm = build(name, {}, learner)
    assert type(algorithm) is ALGORITHMS[name].algorithm
    assert isinstance(algorithm.state_dict(), dict)
