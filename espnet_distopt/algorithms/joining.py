"""What a learner takes over from another one, in whose training it joins."""

from typing import Any

from torch import nn

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.lifecycle import Lifecycle
from espnet_distopt.core.agreement import Items
from espnet_distopt.core.driver import Stateful
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.core.model_buffers import named_untrained
from espnet_distopt.errors import InputError


def can_be_joined(algorithm: Algorithm, learner: Learner) -> bool:
    """Return whether a replacement can join the training, while others go on.

    It can where learners gossip, and each one steps by itself: nobody waits for it.
    """
    alone = len(algorithm.lockstep(learner)) == 1
    return algorithm.survives and algorithm.wants_gossip and alone


def check_joinable(name: str, algorithm: Algorithm, learner: Learner) -> None:
    """Refuse a replacement of a learner that nobody can replace in a training.

    Raises:
        InputError: the algorithm is none of those.
    """
    if not can_be_joined(algorithm, learner):
        raise InputError(
            f"learner {learner.rank} was started again, and no learner can join a "
            f"training by {name}: start all learners again, from what was saved last "
            "(adpsgd can be joined)"
        )


class Joining:
    """The state of a learner, as one that joins takes it over from another.

    Args:
        model: the module that is trained.
        learner: one replica of it.
        lifecycle: the programs of its training, with its algorithm.
        found: all in which learners must be equal (`core.agreement.items`).
        carries: what the training loop keeps beside the session; None if nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        learner: Learner,
        lifecycle: Lifecycle,
        found: Items,
        carries: Stateful | None = None,
    ) -> None:
        self._learner = learner
        self._lifecycle, self._found = lifecycle, found
        self._carries = carries
        self._untrained = named_untrained(model, learner)
        self._taken: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        """Return this learner's state; the tensors are not all copied."""
        learner = self._learner
        return {
            "found": [list(item) for item in self._found],
            "learner": learner.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
            "untrained": dict(self._untrained),
            "epochs": self._lifecycle.epochs,
            "epoch_start": self._lifecycle.epoch_start,
            "algorithm": self._lifecycle.algorithm.state_dict(),
            "carried": self._carries.state_dict() if self._carries else {},
        }

    def take(self, state: dict[str, Any]) -> None:
        """Take over the state of a member.

        Raises:
            InputError: that learner trains another model, or in another way.
            JoinLater: what the training loop keeps cannot be taken over in this epoch.
        """
        for own, other in zip(self._found, state["found"], strict=False):
            if list(own) != other:
                raise InputError(
                    f"learner {self._learner.rank}, which was started again: {own[0]} "
                    f"is {own[1]}, and on the others {other[0]} is {other[1]}: all "
                    "learners must have the same model, algorithm and options"
                )
        if self._carries is not None:
            self._carries.load_state_dict(state["carried"])
        self._learner.load_state_dict(state["learner"])
        self._learner.optimizer.load_state_dict(state["optimizer"])
        for name, tensor in self._untrained.items():
            tensor.copy_(state["untrained"][name])
        self._lifecycle.epochs = state["epochs"]
        self._lifecycle.epoch_start = state["epoch_start"]
        self._taken = state["algorithm"]

    def begin(self, members: Members) -> None:
        """Begin beside the members, of whom this learner is one now."""
        self._learner.members = members
        self._lifecycle.algorithm.join(self._learner, self._taken)
        self._taken = {}
