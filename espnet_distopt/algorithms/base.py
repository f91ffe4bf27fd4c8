"""What an algorithm is: programs that run at fixed points of a training loop."""

from collections.abc import Generator
from typing import Any

from torch import Tensor

from espnet_distopt.core.effects import Broadcast, Effect, Program
from espnet_distopt.core.gossip_state import GossipState
from espnet_distopt.core.learner import Learner


class UnequalStepsError(RuntimeError):
    """Learners that must step together have been given unequal numbers of steps.

    Args:
        learner: who has noticed.
        ended: it has come to the end of its epoch, and another has not; or else, the
            other way round.
        instead: what to use that does not need equal numbers.
    """

    def __init__(
        self, learner: Learner, ended: bool, instead: str = "bmuf or adpsgd"
    ) -> None:
        whose = "this learner" if ended else "another learner"
        super().__init__(
            f"learner {learner.rank}, step {learner.steps}: {whose} has ended its "
            "epoch before others: they have unequal numbers of steps, and this "
            f"algorithm needs equal ones; even out the data, or use {instead}"
        )


class Algorithm:
    """Base of all algorithms; one instance serves one learner.

    A program is a generator that yields effects (`espnet_distopt.core.effects`).
    Programs do arithmetic on the learner's flat tensors. They know nothing of processes
    or of time.

    Attributes:
        wants_gradients: call `after_backward` at the end of each backward pass.
        wants_gossip: run `gossip` beside the training loop.
        equal_steps: learners of one `lockstep` talk in every step, and unequal numbers
            of steps are an error.
        may_freeze: a parameter may be frozen on the way; nothing remembers it.
    """

    wants_gradients = False
    wants_gossip = False
    equal_steps = False
    may_freeze = False

    @classmethod
    def check_size(cls, config: Any, size: int) -> None:
        """Raise InputError if, with `config`, it cannot run on `size` learners."""

    def start(self, learner: Learner) -> Program:
        """Once, before training: every learner begins at learner 0's parameters."""
        yield Broadcast(learner.params)

    def after_backward(self, learner: Learner) -> Program:
        """After each backward pass; may change `learner.grads`."""
        yield from ()

    def after_step(self, learner: Learner) -> Program:
        """After each attempted step."""
        yield from ()

    def end_steps(self, learner: Learner) -> Program:
        """Where there is gossip: after a learner's last step of an epoch.

        It has not waited for anybody yet, and its gossip still runs.
        """
        yield from ()

    def gossip(self, learner: Learner) -> Program:
        """Beside the training loop, from an epoch's first batch to its last step."""
        yield from ()

    def finish(self, learner: Learner) -> Program:
        """At the end of an epoch, when the gossip of every learner has ended."""
        yield from ()

    def lockstep(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks that step together with this one, which is among them."""
        return tuple(range(learner.size))

    def equal_replicas(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks whose parameters are the same bits after each step."""
        return (learner.rank,)

    def gossip_state(self) -> GossipState | None:
        """Return what gossip holds now, for checks; None if there is no gossip."""
        return None

    def next_stop(self, learner: Learner) -> int:
        """Return a number of steps at which the whole lockstep can still stop.

        No learner of it can have made more steps than that by now.
        """
        return learner.steps + 1

    def can_pause(self, learner: Learner) -> bool:
        """Return whether the lockstep can stop at this step; all say the same."""
        return True

    def pause(self, learner: Learner) -> Program:
        """At a stop within an epoch: complete what is in flight.

        All of the lockstep have made the same number of steps. `state_dict` comes next,
        and the run goes on in other processes.
        """
        yield from ()

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the consensus model, (P,), the same bits on every learner."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return figures about the steps since the last call, for the log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what this learner's algorithm must remember between epochs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned."""
