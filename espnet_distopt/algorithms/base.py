"""An algorithm is a set of programs that run at fixed points of a training loop.

They run in this order, which `lifecycle` holds: `start` once; in each step
`after_bucket`, `after_backward` and `after_step`; at the end of each epoch `end_steps`,
`finish` and `consensus`. `gossip` runs beside the steps of an epoch. When a run is
stopped within an epoch, `pause` runs and the state is saved.
"""

from collections.abc import Generator
from typing import Any

from torch import Tensor

from espnet_distopt.core.effects import Broadcast, Effect, Program
from espnet_distopt.core.gossip_state import GossipState
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.noise_share import NoiseShare


class UnequalStepsError(InputError):
    """Learners that must step together have been given unequal numbers of steps.

    Args:
        learner: the learner that has noticed.
        ended: True if this learner has come to the end of its epoch before another one,
            False if another one has done so before it.
    """

    def __init__(self, learner: Learner, ended: bool) -> None:
        whose = "this learner" if ended else "another learner"
        super().__init__(
            f"learner {learner.rank}, step {learner.steps}: {whose} has ended its "
            "epoch before others: they have unequal numbers of steps, and this "
            "algorithm needs equal ones; even out the data, let a WorkQueue deal it "
            "out, or use bmuf or adpsgd"
        )


class Algorithm:
    """The base class of all algorithms; one instance serves one learner.

    A program is a generator that yields effects (`espnet_distopt.core.effects`).
    Programs do arithmetic on the learner's flat tensors. They know nothing of processes
    or of time.

    Attributes:
        wants_gradients: whether `after_backward` is called at the end of each backward
            pass.
        wants_gossip: whether `gossip` runs beside the training loop.
        equal_steps: whether the learners of one `lockstep` communicate in every step,
            so that unequal numbers of steps are an error.
        may_freeze: whether a user may freeze a parameter during the training. True for
            an algorithm that remembers nothing of a parameter from step to step.
        averaged_batches: the number of batches whose mean the average of the learners
            takes, for which Adam's second moment is corrected; 1 leaves it alone. It
            follows the members.
        noise: what compares the noise of this learner with that of others, for the
            correction; None where nothing is corrected.
        survives: whether the training goes on when a learner is lost. If not, the run
            ends with a `PeerLostError`, which names the learner.
        advice: what a user who comes from DDP has to change beside the algorithm's
            name, in words that learner 0 logs when a training begins; "" for nothing.
    """

    wants_gradients = False
    wants_gossip = False
    equal_steps = False
    may_freeze = False
    averaged_batches: float = 1
    noise: NoiseShare | None = None
    survives = False
    advice = ""

    def __init__(self, config: Any, learner: Learner) -> None:
        """Prepare nothing; a subclass has options, and looks at its learner."""

    @classmethod
    def check_size(cls, config: Any, size: int) -> None:
        """Raise InputError if the algorithm cannot run on `size` learners."""

    def start(self, learner: Learner) -> Program:
        """Prepare the training; it is called once, before the first step.

        Every learner takes over learner 0's parameters. Cost: about n bytes.
        """
        yield Broadcast(learner.params)

    def after_backward(self, learner: Learner) -> Program:
        """Use the gradients of a backward pass, which has ended.

        The program may change `learner.grads`.
        """
        yield from ()

    def after_bucket(self, learner: Learner, number: int) -> Program:
        """Use a part of the gradients, while the backward pass goes on.

        Args:
            learner: this learner.
            number: the number of the bucket in `learner.buckets`; those before it have
                been used. The last bucket has no call of its own.
        """
        yield from ()

    def after_step(self, learner: Learner) -> Program:
        """Do what is to be done after each attempted step."""
        yield from ()

    def end_steps(self, learner: Learner) -> Program:
        """Do what is to be done after this learner's last step of an epoch.

        A session calls it only if there is gossip. The learner has not waited for
        others yet, and its gossip still runs.
        """
        yield from ()

    def gossip(self, learner: Learner) -> Program:
        """Communicate beside the training loop.

        The program runs from the first batch of an epoch to its last step.
        """
        yield from ()

    def finish(self, learner: Learner) -> Program:
        """End an epoch; the gossip of every learner has ended before."""
        yield from ()

    def lockstep(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks of the learners that step together, this one among them."""
        return tuple(range(learner.size))

    def lost_with(self, learner: Learner, rank: int) -> tuple[int, ...]:
        """Return the ranks that leave the members when `rank` is lost, `rank` too."""
        return (rank,)

    def change_members(self, learner: Learner, members: Members) -> None:
        """Follow a change of the living learners; a driver calls it between two yields.

        Where learners gossip, they are told as soon as their driver knows, and so not
        all at the same time. Where they meet in collectives, a change comes with a
        collective, before its result, and is the same on all who took part in it.
        """
        learner.members = members

    def join(self, learner: Learner, state: dict[str, Any]) -> None:
        """Begin beside learners that are training, in place of `start`.

        The learner has its parameters and its optimizer's state from a member already,
        and knows the members.

        Args:
            learner: the learner that joins.
            state: what `state_dict` of that member's algorithm has returned. The member
                is the first of the ranks that would leave with it (`lost_with`).
        """
        self.load_state_dict(state)

    def equal_replicas(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks whose parameters are the same bits after each step."""
        return (learner.rank,)

    def gossip_state(self) -> GossipState | None:
        """Return what gossip holds now, for checks; None if there is no gossip."""
        return None

    def next_stop(self, learner: Learner) -> int:
        """Return a number of steps at which the whole lockstep can still stop.

        No learner of the lockstep can have made more steps than that by now.
        """
        return learner.steps + 1

    def can_pause(self, learner: Learner) -> bool:
        """Return whether the lockstep can stop at this step.

        All learners of the lockstep return the same.
        """
        return True

    def pause(self, learner: Learner) -> Program:
        """Complete all communication in flight, at a stop within an epoch.

        All learners of the lockstep have made the same number of steps. The session
        calls `state_dict` next, and the run is resumed in other processes.
        """
        yield from ()

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the consensus model (P,), which has the same bits on every learner.

        That is learner 0's replica, where all are equal after `finish`: where they are
        not, their distance says so. Cost: about n bytes.
        """
        model: Tensor = yield Broadcast(learner.params.detach().clone())
        return model

    def metrics(self) -> dict[str, float]:
        """Return figures, name -> value, about the steps since the last call."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what this learner's algorithm must remember when a run is resumed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned."""
