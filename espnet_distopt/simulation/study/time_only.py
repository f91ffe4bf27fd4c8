"""The module has the problem of a simulation that asks for time alone.

There is no gradient, so nothing is learnt. Messages have the bytes of a model of any
size (`Trial.model_bytes`), while its few parameters are what they carry. What is
simulated is when which learner waits for whom.
"""

from dataclasses import dataclass

import torch
from torch import nn

from espnet_distopt.simulation.virtual_learner import Gradient

DIMENSION = 4000
"""The parameters of the stand-in. The few elements that some algorithms add to a
message, such as a learner's samples, count as a part of the model as large."""

TENSORS = 4
"""The tensors of the stand-in. So gradients travel in at most four buckets; those of a
real model of more than 100 MB are more, and the first one begins a little earlier."""


class StandIn(nn.Module):
    """A model of `DIMENSION` parameters, which are zero."""

    def __init__(self) -> None:
        super().__init__()
        each = torch.zeros(DIMENSION // TENSORS)
        self.x = nn.ParameterList(each.clone() for _ in range(TENSORS))


@dataclass(kw_only=True)
class TimeOnly:
    """A `Problem` whose steps take virtual time and do nothing.

    Attributes:
        batch_size: the number of samples of one learner's step.
        samples: the number of samples of an epoch.
    """

    batch_size: int = 16
    samples: int = 7680

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a stand-in for a learner's model, which has no gradient."""
        return StandIn(), None

    def held_out_loss(self, model: nn.Module) -> float:
        """Return 0, because nothing is learnt."""
        return 0.0

    def describe(self) -> str:
        """Return one phrase for captions."""
        return "none, because only time is simulated"
