"""A session ties a learner, its algorithm and its driver to a training loop."""

import contextlib
import math
import sys
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.algorithms.training_options import check_session_options
from espnet_distopt.attached import Attached
from espnet_distopt.core.driver import Driver, Place, Stateful
from espnet_distopt.core.effects import AllReduceMean, Barrier, only
from espnet_distopt.core.membership import Meeting, Members
from espnet_distopt.errors import InputError


class Session(Attached):
    """One learner's part in a distributed training.

    While a session is open, the model's parameters lie in one buffer. A user who
    freezes, unfreezes, moves or adds a parameter meanwhile, or loads a state into the
    model, gets an InputError at the next step. Leave the session by `with` or `close`.

    Example (alone, or in each process after `torch.distributed.init_process_group`):
        >>> import torch
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> with Session(model, optimizer, "bmuf_adam", period=4) as session:
        ...     for _ in range(8):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(2, 3)).sum().backward()
        ...         optimizer.step()
        ...         session.step()
        ...     with session.consensus():
        ...         _ = model(torch.ones(1, 3))

    Args:
        model: the module that is trained, on its final device.
        optimizer: any `torch.optim` optimizer over its parameters.
        algorithm: the name of an algorithm (`espnet_distopt.algorithms.names`).
        driver: what carries out the communication; None takes the process group.
        heartbeat_seconds: seconds of silence after which a learner counts as lost, at
            least 1. It is for the process group; another driver has its own.
        carries: what the training loop keeps beside the session, as a schedule: an
            object with `state_dict` and `load_state_dict`. A learner that joins in the
            place of a dead one takes its state over from a member; None: nothing.
        repeat_begun: whether another learner trains on the item of a `WorkQueue` that a
            learner was training on when it died. If so, the item may be trained on
            twice; if not, it may be trained on not at all.
        options: the options of the algorithm.

    Raises:
        InputError: the algorithm or an option is unknown, the number of learners or
            `heartbeat_seconds` is impossible, the algorithm cannot train the model or
            the optimizer (`core.refusals`), or the learners have different ones.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        algorithm: str,
        driver: Driver | None = None,
        heartbeat_seconds: float = 30,
        carries: Stateful | None = None,
        repeat_begun: bool = False,
        **options: Any,
    ) -> None:
        check_session_options(heartbeat_seconds, repeat_begun)
        super().__init__(
            model, optimizer, algorithm, driver, options, heartbeat_seconds, carries
        )
        self.repeat_begun = repeat_begun
        self._first_epoch = self._lifecycle.epochs
        self._stop_requested = False
        self._stop_at: Place | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the training and detach, as the end of `with` does.

        Gossip that is under way is ended before, together with all learners, unless
        there is an error.

        Args:
            error: the error that ends the training, which the other learners are told;
                None takes the one that is being handled, as in a `finally`, if any.
        """
        self._end(sys.exc_info()[1] if error is None else error)

    def _end(self, error: BaseException | None) -> None:
        try:
            if error is None and self._lifecycle.gossiping and not self._closed:
                self.finish()
        except BaseException as failure:
            error = failure
            raise
        finally:
            super().close(error)

    @property
    def first_epoch(self) -> int:
        """The number, from 0, of the epoch in which this learner has begun.

        It is 0, but for a learner that has joined in the place of one that has died:
        the others had ended so many epochs of this session.
        """
        return self._first_epoch

    def begin_batch(self, samples: float) -> None:
        """Say at the start of each batch how many samples it has.

        Algorithms that average gradients weigh each learner's by this number. A call is
        optional, with one more effect: the gossip of an epoch begins with its first
        batch instead of its first step, so that the neighbours of a slow learner need
        not wait for that step.

        Args:
            samples: the number of samples of this learner's batch.

        Raises:
            InputError: `samples` is no such number.
        """
        self._check()
        if not 0 <= samples < math.inf:
            raise InputError(
                f"{self.learner.where}: begin_batch needs the number of samples of the "
                f"batch, by which its gradients are weighted, not {samples}"
            )
        self.learner.begin_batch(float(samples))
        self._run(self._lifecycle.begin_batch())

    def step(self) -> None:
        """Follow one attempted step; call it also where the update was skipped.

        Raises:
            InputError: a parameter was frozen, unfrozen, added or moved, or a state was
                loaded into the model; or all backward passes were in `no_sync`.
            PeerLostError: another learner has died; the message names it.
        """
        self._check()
        self.learner.check_storage()
        self._check_averaged()
        self._changes.check_trained(self.algorithm.may_freeze)
        self._changes.check_others()
        self._changes.count_update()
        self._train(self._lifecycle.step())
        self._changes.remember()

    def finish(self) -> bool:
        """End an epoch: wait for all learners, and end their gossip and blocks.

        The result is True if the epoch has ended. It is False if another learner has
        stopped within the epoch meanwhile: then this learner has paused with it, and
        what follows is what follows `pause`.
        """
        self._check()
        finished: bool = self._train(self._lifecycle.finish())
        self._may_pause = False
        self._changes.remember()
        return finished

    def barrier(self) -> Members:
        """Wait for all living learners, however long they take; return who has met.

        Raises:
            PeerLostError: a learner is lost, and the algorithm does not survive that;
                the message names it.
            InputError: another learner may have paused (`agree_to_stop`).
        """
        self._check_others_come()
        meeting: Meeting = self._run(only(Barrier()))
        return meeting.members

    def request_stop(self) -> None:
        """Ask all learners to stop soon. A signal handler may call this."""
        self._stop_requested = True

    def agree_to_stop(self) -> bool:
        """Return whether this learner must stop now: ask after each step, and before.

        Open the `WorkQueue` of an epoch before the first question: its constructor
        waits for all learners, and one that has paused does not come. Where learners do
        not step together, what waits for all is refused from then on, until the epoch
        ends.

        If any learner has requested a stop, learners that step together agree on a
        step, which is at most a block away, and stop there. If the epoch ends before
        that, they stop when they next ask. A learner that must stop calls `pause` and
        `state_dict`, and ends.
        """
        self._check()
        driver, learner = self.driver, self.learner
        group = self.algorithm.lockstep(learner)
        self._may_pause = len(group) < learner.size
        if self._stop_at is None:
            if self._stop_requested:
                driver.announce_stop()
            elif not driver.stop_announced():
                return False
            place = self._place(self.algorithm.next_stop(learner))
            self._stop_at = driver.propose_stop(group, place)
        here = self._place(learner.steps)
        return here >= self._stop_at and self.algorithm.can_pause(learner)

    def _place(self, steps: int) -> Place:
        """Return where a learner is that has made `steps` steps.

        The number of all steps would not do: in earlier epochs some learners may have
        made more than others. Nor would that of the epoch alone, because a learner may
        hear of the stop in the epoch after the one in which it was proposed.
        """
        return Place(self._lifecycle.epochs, steps - self._lifecycle.epoch_start)

    def pause(self) -> None:
        """Stop within an epoch: wait until nothing is in flight between learners."""
        self._check()
        self._train(self._lifecycle.pause())
        self._may_pause = False
        self._changes.remember()

    def enter_consensus(self) -> float:
        """Put the consensus model xbar in place of the learner's parameters x_i.

        It comes after `finish`. The learner's own parameters are kept for
        `leave_consensus`. The result is the consensus distance, the mean over the
        learners of ||x_i - xbar|| / ||xbar||.
        """
        self._check()
        self._check_others_come()
        params = self.learner.params
        own = params.clone()
        mean: Tensor = self._run(self._lifecycle.consensus())
        distance = (own - mean).norm() / mean.norm().clamp_min(1e-30)
        self._own = own.copy_(params)  # which may go on from the consensus
        params.copy_(mean)
        return self.mean(float(distance))

    def mean(self, value: float) -> float:
        """Return the mean of `value` over the living learners, who all call this."""
        return self.means([value])[0]

    def means(self, values: Sequence[float]) -> list[float]:
        """Return the mean of each value over the living learners, who all call this.

        Afterwards `learner.members` is the list of those who have taken part, the same
        on all of them, if the algorithm survives deaths.

        Raises:
            InputError: another learner may have paused (`agree_to_stop`).
        """
        self._check_others_come()
        tensor = self.learner.params.new_tensor(values, dtype=torch.float64)
        mean: Tensor = self._run(only(AllReduceMean(tensor)))
        return mean.tolist()

    def leave_consensus(self) -> None:
        """Give the learner its own parameters back, if they were set aside."""
        if self._own is not None:
            self.learner.params.copy_(self._own)
            self._own = None
            self._changes.remember()

    @contextlib.contextmanager
    def consensus(self) -> Generator[float, None, None]:
        """End the epoch; inside, the model's parameters are the consensus model.

        All learners enter it. The value of the `with` is the consensus distance.

        Raises:
            InputError: another learner has stopped within the epoch, so that there is
                no consensus; this learner has paused with it.
        """
        if not self.finish():
            raise InputError(
                f"{self.learner.where}: another learner has stopped within the epoch, "
                "and this one has paused: save and end; a loop that stops on request "
                "calls finish() itself, and enters the consensus if that is true"
            )
        distance = self.enter_consensus()
        try:
            yield distance
        finally:
            self.leave_consensus()

    def metrics(self) -> dict[str, float]:
        """Return figures since the last call: seconds, bytes, exchanges, staleness."""
        spent = dict(self.driver.spent)
        self.driver.spent.clear()
        zeros = {"comm_time": 0.0, "wait_time": 0.0, "bytes": 0.0}
        return {**zeros, **spent, **self.algorithm.metrics()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this learner between epochs; each learner has its own.

        Tensors, numbers, strings, lists and dicts only. The optimizer's state is not
        in it: save `optimizer.state_dict()` beside it.
        """
        learner = self.learner.state_dict()
        if self._own is not None:
            learner["params"] = self._own.clone()
        return {
            "algorithm": self.name,
            "learner": learner,
            "epoch_start": self._lifecycle.epoch_start,
            "state": self.algorithm.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned, after the optimizer's state.

        It is for between epochs, or for a session that has made no step.

        Raises:
            InputError: the state was saved by another algorithm, by another number of
                learners within a block (BMUF and its kin), or for another model; or
                this learner is within an epoch or inside the consensus.
        """
        self._check_between_epochs("load_state_dict")
        if state["algorithm"] != self.name:
            raise InputError(
                f"the saved state is of {state['algorithm']}, not of {self.name}"
            )
        self.learner.load_state_dict(state["learner"])
        self._lifecycle.epoch_start = state["epoch_start"]
        self.algorithm.load_state_dict(state["state"])
        self._changes.forget_load()
