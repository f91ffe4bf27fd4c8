"""What a simulation trains: the replicas of a model, their batches, a held-out loss."""

from typing import Protocol

from torch import nn

from espnet_distopt.simulation.virtual_learner import Gradient


class Problem(Protocol):
    """A model with its data, for any number of virtual learners.

    Attributes:
        batch_size: samples of one learner's step, so that the total batch is `size`
            times as many. Whoever simulates may set it before asking for replicas.
        samples: samples of one epoch, a pass over the training data.
    """

    batch_size: int
    samples: int

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a learner's own model, and the gradient of its batches.

        Models begin with equal parameters on all learners. The gradient depends on the
        model, the learner, the number of the step and torch's random numbers only;
        different learners have different batches. It makes `batch_size` samples.
        """
        ...

    def held_out_loss(self, model: nn.Module) -> float:
        """Return the loss of `model` on data that is not trained on."""
        ...

    def describe(self) -> str:
        """Return one phrase for captions, with the figures that repeat it."""
        ...
