"""What a member serves to a replacement."""

from functools import partial
from typing import Any

import torch
from torch.optim import SGD

from espnet_distopt.algorithms import build
from espnet_distopt.algorithms.lifecycle import Joining, Lifecycle
from espnet_distopt.core.effects import AwaitStep
from tests.replicas import Point, Replica

MAKE = partial(SGD, lr=0.0)


def test_after_a_restart_it_is_the_state_of_the_new_algorithm() -> None:
    options: dict[str, Any] = {"exchange": "bfloat16"}
    model = Point([1.0, 2.0], torch.float32)
    mine = Replica.of("adpsgd", model, MAKE, 0, 2, **options)
    lifecycle = Lifecycle(model, mine.learner, mine.algorithm)
    place = Joining(model, mine.learner, lifecycle, found=[])
    mine.learner.params.fill_(5.0)
    lifecycle.algorithm = build("adpsgd", options, mine.learner)
    assert place.state()["algorithm"]["reference"].tolist() == [5.0, 5.0]


def test_one_that_is_built_alone_gossips_with_a_replacement() -> None:
    """It must retire at the epoch's end, as a replacement waits for that."""
    for rank in range(2):
        mine = Replica.of("adpsgd", Point([1.0]), MAKE, rank, 2)
        mine.learner.members = mine.learner.members.without([1 - rank])
        algorithm = build("adpsgd", {}, mine.learner)
        assert isinstance(next(algorithm.gossip(mine.learner)), AwaitStep)
