"""The order in which the programs of an algorithm run in a training.

A training is a start, then epochs of steps, then a consensus after any epoch:

    start
    epoch:      begin_batch, after_bucket, after_backward, step   (again and again)
                finish, or pause where a run stops within the epoch
    consensus

Each of these is one program, which the session runs on a learner's training thread and
the simulation on a virtual learner. Beside the effects of the algorithm these programs
yield four that concern the gossip and the end of an epoch: `StartGossip`, `Published`,
`StopGossip` and `Barrier`.

A learner can join a training that others go on with: then `Joining` takes the place of
the start.
"""

from collections.abc import Generator
from typing import Any

from torch import Tensor, nn

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.core.agreement import Items
from espnet_distopt.core.driver import Stateful
from espnet_distopt.core.effects import (
    Barrier,
    Effect,
    Program,
    Published,
    StartGossip,
    StopGossip,
)
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Meeting, Members
from espnet_distopt.core.model_buffers import (
    average_statistics,
    named_untrained,
    share_model_buffers,
)
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import correct


class Lifecycle:
    """The programs of one learner's training, in their order.

    Attributes:
        epoch_start: the attempted steps that the learner had made when the epoch began.
        epochs: the number of epochs that have ended.
        stops: how often the training was stopped within this epoch, and has gone on.
        gossiping: whether the gossip of the epoch has begun and has not ended.
    """

    def __init__(
        self, model: nn.Module, learner: Learner, algorithm: Algorithm
    ) -> None:
        self._model = model
        self._learner = learner
        self.algorithm = algorithm
        self.epoch_start = 0
        self.epochs = self.stops = 0
        self.gossiping = False
        self._correction = correct(
            learner.optimizer,
            algorithm.averaged_batches,
            algorithm.noise,
            warns=learner.rank == 0,
        )

    def close(self) -> None:
        """Detach from the optimizer."""
        if self._correction is not None:
            self._correction.close()

    def start(self) -> Program:
        """Let every learner begin at learner 0's model, buffers included."""
        yield from share_model_buffers(self._model, self._learner)
        yield from self.algorithm.start(self._learner)

    def begin_batch(self) -> Program:
        """Begin the gossip of the epoch, if the algorithm has one and it has not.

        The second moment is corrected for the learners that are members by now.
        """
        if self._correction is not None:
            self._correction.batches = self.algorithm.averaged_batches
        if self.algorithm.wants_gossip and not self.gossiping:
            self.gossiping = True
            program = self.algorithm.gossip(self._learner)
            yield StartGossip(program, self._learner.params.device)

    def after_bucket(self, number: int) -> Program:
        """Let the algorithm see a part of the gradients, within a backward pass."""
        yield from self.algorithm.after_bucket(self._learner, number)

    def after_backward(self) -> Program:
        """Let the algorithm see the gradients, at the end of a backward pass."""
        yield from self.algorithm.after_backward(self._learner)

    def step(self) -> Program:
        """Count an attempted step, let the algorithm follow it, and tell the gossip."""
        self._learner.steps += 1
        yield from self.algorithm.after_step(self._learner)
        yield from self.begin_batch()
        if self.algorithm.wants_gossip:
            yield Published()

    def finish(self) -> Generator[Effect, Any, bool]:
        """End an epoch.

        Returns False where another learner has stopped within the epoch meanwhile: this
        one has paused with it.
        """
        if (yield from self._end_gossip(pausing=False)):
            yield from self._pause()
            return False
        yield from self.algorithm.finish(self._learner)
        self._learner.check_storage()
        self.epoch_start = self._learner.steps
        self.epochs, self.stops = self.epochs + 1, 0
        return True

    def pause(self) -> Program:
        """Stop within an epoch: wait until nothing is in flight anywhere."""
        yield from self._end_gossip(pausing=True)
        yield from self._pause()

    def _pause(self) -> Program:
        yield from self.algorithm.pause(self._learner)
        self._learner.check_storage()

    def _end_gossip(self, pausing: bool) -> Generator[Effect, Any, bool]:
        """End the gossip of all learners; return whether any of them is `pausing`.

        Other learners may be far behind: so all wait for each other, as long as it
        takes, before they meet in collectives. Learners that step together are not far
        apart, and those with more data must not be left waiting for a block: they do
        without.
        """
        if not self.algorithm.wants_gossip:
            return False
        yield from self.begin_batch()
        yield from self.algorithm.end_steps(self._learner)
        yield StopGossip()
        self.gossiping = False
        meeting: Meeting = yield Barrier(pausing)
        self.algorithm.change_members(self._learner, meeting.members)
        return meeting.pausing

    def consensus(self) -> Generator[Effect, Any, Tensor]:
        """Average what BatchNorm has learnt; return the consensus model, (P,)."""
        yield from average_statistics(self._model)
        return (yield from self.algorithm.consensus(self._learner))


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

    Attributes:
        carried: what a member has kept so, if this learner has taken its state over.
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
        self.carries = carries
        self.carried: dict[str, Any] | None = None
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
            "stops": self._lifecycle.stops,
            "epoch_start": self._lifecycle.epoch_start,
            "algorithm": self._lifecycle.algorithm.state_dict(),
            "carried": self.carries.state_dict() if self.carries else {},
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
        self.carried = state["carried"]
        if self.carries is not None:
            self.carries.load_state_dict(self.carried)
        self._learner.load_state_dict(state["learner"])
        self._learner.optimizer.load_state_dict(state["optimizer"])
        for name, tensor in self._untrained.items():
            tensor.copy_(state["untrained"][name])
        self._lifecycle.epochs = state["epochs"]
        self._lifecycle.stops = state["stops"]
        self._lifecycle.epoch_start = state["epoch_start"]
        self._taken = state["algorithm"]

    def begin(self, members: Members) -> None:
        """Begin beside the members, of whom this learner is one now."""
        self._learner.members = members
        self._lifecycle.algorithm.join(self._learner, self._taken)
        self._taken = {}
