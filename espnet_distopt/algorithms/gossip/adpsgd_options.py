"""The options of `adpsgd`, which `hadpsgd` has as well."""

from dataclasses import dataclass
from typing import Literal

from espnet_distopt.algorithms.gossip.colours import GossipTopology
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class AdpsgdConfig:
    """Options of `adpsgd`.

    Attributes:
        topology: the learners that an active learner may invite: its neighbours on a
            `ring`, or any passive learner (`random`); each time it picks one of them
            uniformly. On a `randomized_ring`, whose order changes, it invites its two
            neighbours in turn. None means a ring of up to 16 learners, and `random` for
            more.
        exchange: float32 sends the parameters as they are; bfloat16 sends what has
            changed in them, in half the bytes, see `bfloat16`.
        max_staleness: the bound on staleness in steps (T in the paper): training waits
            for an exchange that has been in flight for this many of its steps.
        from_consensus: whether learners begin each epoch at the consensus model. If
            False, each begins at its own parameters.
        seed: seed of the random choice of neighbours, and of the randomized ring.
        second_moment: consistent corrects Adam's second moment, which is that of this
            learner's own batches, to that of all learners' batches together, see
            `optimizers.consistent`; local leaves it as it is.
    """

    topology: GossipTopology | None = None
    exchange: Literal["float32", "bfloat16"] = "float32"
    max_staleness: int = 16
    from_consensus: bool = False
    seed: int = 0
    second_moment: Literal["consistent", "local"] = "consistent"

    def __post_init__(self) -> None:
        if self.max_staleness < 1:
            raise InputError(f"max_staleness must be >= 1, not {self.max_staleness}")
