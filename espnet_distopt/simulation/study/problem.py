"""The module defines a problem: the model that a simulation trains, and its data."""

from typing import Protocol

from torch import nn

from espnet_distopt.simulation.virtual_learner import Gradient


class Problem(Protocol):
    """A model with its data, for any number of virtual learners.

    Attributes:
        batch_size: the number of samples of one learner's step; with N learners the
            total batch has N times as many. A trial sets it before it asks for
            replicas.
        samples: the number of samples of an epoch, which is one pass over the training
            data.
    """

    batch_size: int
    samples: int

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a learner's own model, and the function that computes its gradients.

        All learners' models start with equal parameters. A gradient is that of one
        batch of `batch_size` samples. It depends only on the model's parameters, the
        learner, the number of the step, and torch's random numbers; different learners
        have different batches.

        Args:
            rank: the learner.
            size: the number of learners.
        """
        ...

    def held_out_loss(self, model: nn.Module) -> float:
        """Return the loss of `model` on data that no learner trains on."""
        ...

    def describe(self) -> str:
        """Return one phrase for captions, with all figures that define the problem."""
        ...
