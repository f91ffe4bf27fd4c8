"""The module has the problem of a simulation that asks for time alone.

There is no gradient, so nothing is learnt. Messages have the bytes of a model of any
size (`Trial.model_bytes`), while its few parameters are what they carry. What is
simulated is when which learner waits for whom.
"""

import inspect
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from espnet_distopt.simulation.virtual_learner import Gradient

Kind = TypeVar("Kind", bound=Optimizer)

DIMENSION = 4000
"""The parameters of the stand-in. The few elements that some algorithms add to a
message, such as a learner's samples, count as a part of the model as large."""

TENSORS = 4
"""The tensors of the stand-in. So gradients travel in at most four buckets; those of a
real model of more than 100 MB are more, and the first one begins a little earlier."""


class StandIn(nn.Module):
    """A model of `DIMENSION` parameters or a few less, which are zero.

    Args:
        tensors: the number of tensors, which are equally large.
    """

    def __init__(self, tensors: int = TENSORS) -> None:
        super().__init__()
        each = torch.zeros(max(1, DIMENSION // tensors))
        self.x = nn.ParameterList(each.clone() for _ in range(tensors))


def without_steps(kind: type[Kind]) -> type[Kind]:
    """Return a class as `kind` whose steps do nothing, as there are no gradients.

    Those of `kind` would do nothing either. But torch imports its compiler when an
    optimizer is made and when it steps, to keep the compiler away from them, and that
    takes longer than the simulation of a method.
    """

    def step(self: Optimizer, closure: Any = None) -> None:
        """Do nothing but what the hooks of a step do."""

    # It stands for the step of `kind`, by which corrections know an optimizer.
    step.__wrapped__ = kind.step  # type: ignore[attr-defined]
    add_param_group = inspect.unwrap(kind.add_param_group)
    return type(
        kind.__name__, (kind,), {"step": step, "add_param_group": add_param_group}
    )


@dataclass(kw_only=True)
class TimeOnly:
    """A `Problem` whose steps take virtual time and do nothing.

    Attributes:
        batch_size: the number of samples of one learner's step.
        samples: the number of samples of an epoch.
        tensors: the number of tensors of the stand-in.
    """

    batch_size: int = 16
    samples: int = 7680
    tensors: int = TENSORS

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a stand-in for a learner's model, which has no gradient."""
        return StandIn(self.tensors), None

    def held_out_loss(self, model: nn.Module) -> float:
        """Return 0, because nothing is learnt."""
        return 0.0

    def describe(self) -> str:
        """Return one phrase for captions."""
        return "none, because only time is simulated"
