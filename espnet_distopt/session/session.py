"""A session ties a learner, its algorithm and its driver to a training loop.

While a session is open, the parameters are views of one flat buffer, and hooks watch
the optimizer and the model. `close` gives each parameter storage of its own and removes
the hooks, so that nothing of the session stays behind.
"""

import contextlib
import logging
import math
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.algorithms import build, lookup, options
from espnet_distopt.algorithms.lifecycle import (
    Joining,
    Lifecycle,
    can_be_joined,
    check_joinable,
)
from espnet_distopt.algorithms.options import SessionConfig
from espnet_distopt.core.agreement import Items, agree, items
from espnet_distopt.core.changes import Changes
from espnet_distopt.core.driver import Driver, Place, Stateful
from espnet_distopt.core.effects import AllReduceMean, Barrier, Effect, only
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Meeting, Members
from espnet_distopt.core.open_queues import position
from espnet_distopt.core.refusals import check_algorithm, check_model
from espnet_distopt.distributed.launcher import check_process_group
from espnet_distopt.distributed.nccl import advised
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.distributed.state_transfer import check_sendable
from espnet_distopt.distributed.stop_signals import on_stop_signal
from espnet_distopt.errors import InputError, PeerLostError, end_in_a_line
from espnet_distopt.session.resuming import Resumption

_SHARE_LEFT = (
    ". If the data is divided among the learners (DistributedSampler), nobody trains "
    "on the share of the lost one; a WorkQueue would deal it out to the others"
)
"""What is added to the line on a loss in a session that has opened no work queue."""


def steps_alone(algorithm: str | None) -> bool:
    """Return whether learners, or nodes of them, step without waiting for others.

    Args:
        algorithm: the name of an algorithm; None where each step waits for all.
    """
    return algorithm is not None and bool(lookup(algorithm).algorithm.wants_gossip)


class Session:
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
        carries: what the training loop keeps beside the session, as a schedule: an
            object with `state_dict` and `load_state_dict`. A learner that joins in the
            place of a dead one takes its state over from a member; None: nothing. What
            `resume` is given is carried so, too.
        options: the options of the algorithm, and those of the session itself
            (`algorithms.options.SessionConfig`): `heartbeat_seconds`, after
            whose silence a learner counts as lost, and `repeat_begun`, whether another
            learner trains on the item of a `WorkQueue` that a dead one had begun.

    Attributes:
        name: the name of the algorithm.
        algorithm: the algorithm.
        learner: this learner's parameters, moments and counts.
        driver: what carries out the communication.
        repeat_begun: see `SessionConfig`.
        of_lost_share: what becomes of the data of a learner that has died, without a
            work queue: the end of the line that names it.

    Raises:
        InputError: the algorithm or an option is unknown, the number of learners or an
            option of the session is impossible, the algorithm cannot train the model or
            the optimizer (`core.refusals`), or the learners have different ones.
    """

    learner: Learner

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        algorithm: str,
        driver: Driver | None = None,
        carries: Stateful | None = None,
        **options: Any,
    ) -> None:
        try:
            config, self._options = SessionConfig.split(options)
            if driver is None:
                check_process_group()
            check_model(model, optimizer)
        except InputError:
            end_in_a_line("this learner")
            raise
        self.driver: Driver = driver or ProcessGroupDriver(config.heartbeat_seconds)
        self.repeat_begun = config.repeat_begun
        self.of_lost_share = _SHARE_LEFT
        self.name = algorithm
        self._carries = carries
        self._model = model
        self._own: Tensor | None = None
        self._closed = False
        self._may_pause = False
        self._stop_requested = False
        self._stop_at: Place | None = None
        self._averaged = False
        self._seen = True  # the consensus of all steps, or a pause
        self._joining: Joining | None = None
        self._resumption: Resumption | None = None
        self._hold = contextlib.ExitStack()
        try:
            with advised():
                self._take_hold(optimizer)
        except BaseException as error:
            self._detach(error)
            raise
        self._first_epoch = self._lifecycle.epochs

    def _take_hold(self, optimizer: Optimizer) -> None:
        model, driver = self._model, self.driver
        self.learner = learner = Learner(
            model, optimizer, driver.rank, driver.size, driver.per_node
        )
        self._hold.callback(learner.release)
        self.algorithm = build(self.name, self._options, learner)
        self._lifecycle = Lifecycle(model, learner, self.algorithm)
        self._hold.callback(self._lifecycle.close)
        check_algorithm(self.name, self.algorithm, learner, model)
        found = items(model, learner, self.name, options(self.name, self._options))
        joins = learner.size > 1 and driver.joins
        if joins:
            check_joinable(self.name, self.algorithm, learner)
        elif learner.size > 1:
            self._run(agree(found, learner))
        if learner.size > 1 and self.algorithm.wants_gradients:
            learner.watch_backward(self._after_backward, self._after_bucket)
        if not joins:
            self._run(self._lifecycle.start())
            self._advise()
        if self.algorithm.survives:
            driver.survive(
                lambda rank: self.algorithm.lost_with(learner, rank),
                lambda members: self.algorithm.change_members(learner, members),
                lambda: "" if position(driver).opened else self.of_lost_share,
            )
        if learner.size > 1 and can_be_joined(self.algorithm, learner):
            self._admit(found, joins)
        self._changes = Changes(learner, model)
        self._hold.callback(self._changes.close)

    def _advise(self) -> None:
        if self.algorithm.advice and self.learner.rank == 0:
            logging.getLogger(__name__).info(f"{self.name}: {self.algorithm.advice}")

    def _admit(self, found: Items, joins: bool) -> None:
        """Let replacements join, and join the others if this learner is one."""
        self._joining = place = Joining(
            self._model,
            self.learner,
            self._lifecycle,
            found,
            self._carries,
        )
        if self._carries is not None:
            state = self._carries.state_dict()
            check_sendable(state, f"{self.learner.where}: the state of `carries`")
        if joins:
            self.driver.join(place.take)
            place.begin(self.driver.members)
            self._run(self._lifecycle.begin_batch())
        self.driver.offer(place.state)

    # The end

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
            if error is None and not self._closed:
                if self._lifecycle.gossiping:
                    self.finish()
                self._tell_of_own_model()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._detach(error)

    def _tell_of_own_model(self) -> None:
        """Tell who has not asked for the consensus what the model is instead."""
        alone = len(self.learner.members.ranks) == 1
        if self._seen or alone or self._keeps_equal() or not self.is_leader:
            return
        logging.getLogger(__name__).warning(
            f"{self.learner.where}: the session ends without a consensus after its "
            f"last steps by {self.name}, so the model is that of one learner, and not "
            "what all have learnt: validate and save it inside `with "
            "session.consensus():`"
        )

    def _detach(self, error: BaseException | None) -> None:
        """Leave the training, and take the hands off the model and the optimizer.

        Args:
            error: the error that ends the training, which the other learners are told;
                None if nothing has failed.
        """
        self._closed = True
        if isinstance(error, KeyboardInterrupt | InputError | PeerLostError):
            end_in_a_line(f"learner {self.driver.rank}")
        try:
            self.driver.leave(error)
        finally:
            kind, trace = (type(error), error.__traceback__) if error else (None, None)
            self._hold.__exit__(kind, error, trace)

    # The steps of an epoch

    @property
    def is_leader(self) -> bool:
        """Whether this learner is the first of those that live: who prints and saves.

        After a consensus or `means` all learners agree on who that is.
        """
        return self.learner.rank == self.learner.members.ranks[0]

    @property
    def first_epoch(self) -> int:
        """The number, from 0, of the epoch in which this learner has begun.

        It is 0, but for a run that `resume` lets go on, and for a learner that has
        joined in the place of one that has died: the others had ended so many epochs.
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

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        """Inside, backward passes only accumulate gradients, as in DDP's `no_sync`.

        An update of several backward passes has all but the last one inside. Then its
        gradients are averaged once, by algorithms that average any. Each learner's
        count by the samples of all its batches of the update. What an epoch leaves over
        counts in the next one, unless the gradients are cleared.
        """
        before, self.learner.accumulates = self.learner.accumulates, True
        try:
            yield
        finally:
            self.learner.accumulates = before

    def average_gradients(self) -> None:
        """Average the parameters' `.grad` over the learners, in place.

        `loss.backward()` does so by itself. Call this where gradients come in another
        way (`torch.autograd.grad`, `torch.func`, compiled autograd, by hand), once
        `.grad` has them and before they are clipped or used. Nothing happens with
        algorithms that average models.

        Raises:
            InputError: a gradient is sparse; or `d1d_grad` has averaged in this step.
            PeerLostError: another learner has died; the message names it.
        """
        self._check()
        self.learner.gather_gradients()

    def step(self) -> None:
        """Follow one attempted step; call it also where the update was skipped.

        Raises:
            InputError: a parameter was frozen, unfrozen, added or moved, or a state was
                loaded into the model; or gradients were used without being averaged.
            PeerLostError: another learner has died; the message names it.
            SystemExit: the learners stop, and have saved themselves (`resume`).
        """
        self._check()
        self.learner.check_storage()
        self._check_averaged()
        self._changes.check_trained(self.algorithm.may_freeze)
        self._changes.check_others()
        self._changes.count_update()
        self._train(self._lifecycle.step())
        self._averaged = self._seen = False
        self._changes.remember()
        if self._resumption is not None and self.agree_to_stop():
            self.pause()
            self._resumption.stop()

    def finish(self) -> bool:
        """End an epoch: wait for all learners, and end their gossip and blocks.

        The result is True if the epoch has ended. It is False if another learner has
        stopped within the epoch meanwhile: then this learner has paused with it, and
        what follows is what follows `pause`. After `resume`, it saves itself and ends.

        Raises:
            InputError: the optimizer has stepped, and `step` was never called.
        """
        self._check()
        self._check_followed()
        finished: bool = self._train(self._lifecycle.finish())
        self._may_pause, self._seen = False, self._seen or not finished
        self._changes.remember()
        if self._resumption is not None:
            if not finished:
                self._resumption.stop()
            self._resumption.end_queues()
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

    # A stop within the epoch

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
        self._may_pause, self._seen = False, True  # It saves its own, and goes on.
        self._changes.remember()

    # Going on where an earlier run has ended

    def resume(self, folder: str | Path, **parts: Stateful) -> None:
        """Go on where an earlier run that saved in `folder` has ended, if there is one.

        All learners call it before their first step. From then on `first_epoch` is the
        epoch to begin with, `save` saves, and on SIGTERM, SIGUSR1 or Ctrl-C `step`
        saves all learners and ends them by SystemExit, with status 75. Another run goes
        on within that epoch: its first `WorkQueue` has what was left of the one before.
        A loop without one begins the batches of the epoch anew.

        A run goes on exactly if all learners have a save of the same moment. If one has
        died long before the end, or there is another number of learners or another
        algorithm, all begin anew at the mean of those who lived, after their last
        epoch. Cost: in each step a look at the rendezvous store.

        Args:
            folder: where to save, which all learners see. It is made if there is none.
            parts: what else to save, by names of your choice: objects with `state_dict`
                and `load_state_dict`, as a schedule or a gradient scaler. A learner
                that joins in the place of a dead one takes them over from a member.

        Raises:
            InputError: the folder cannot be used, or another run does; a save cannot be
                read, or is not of this model, optimizer and parts; or the learner has
                trained already.
        """
        joining = self._joining
        carried = joining.carried if joining is not None else None
        if carried is None:
            self._check_between_epochs("resume")
        if self._resumption is not None or self._carries is not None:
            raise InputError(
                f"{self.learner.where}: resume is called once, and is given what the "
                "session would be given as `carries`"
            )
        self._resumption = resumption = Resumption(
            self, self._model, self._lifecycle, self._changes, Path(folder), parts
        )
        self._hold.callback(resumption.lock.free)
        self._hold.enter_context(on_stop_signal(lambda _: self.request_stop()))
        if joining is not None:
            joining.carries = resumption.parts
        if carried is not None:
            resumption.parts.load_state_dict(carried)
        else:
            resumption.go_on()
            self._first_epoch = self._lifecycle.epochs

    def save(self) -> None:
        """Save this learner inside `with session.consensus():`, for `resume`.

        All learners call it. The first of those that live also writes the consensus
        model to `model.pt` in the folder, for `model.load_state_dict`. A kill leaves
        whole files and the save before.

        Raises:
            InputError: `resume` was not called, or it is not the consensus that the
                model holds, or a file cannot be written.
            SystemExit: the learners stop, and have saved themselves.
        """
        if self._resumption is None:
            raise InputError(
                f"{self.learner.where}: save() has no folder: call "
                "session.resume(folder) before the first step"
            )
        if self._own is None:
            raise InputError(
                f"{self.learner.where}: save() is for within session.consensus()"
            )
        self._resumption.save()
        if self.mean(float(self._stop_requested)) > 0:
            self._resumption.end()

    def begin_queue(self, queue: Any) -> dict[str, Any] | None:
        """Return what a run that has stopped had left of a work queue; None: of none.

        `WorkQueue` calls this, and the queue is saved if the learners stop within the
        epoch.
        """
        if self._resumption is None or self._own is not None:
            return None
        return self._resumption.begin_queue(queue)

    # The consensus, and figures

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
        self._seen = True
        own_distance = (own - mean).norm() / mean.norm().clamp_min(1e-30)
        self._own = own.copy_(params)  # which may go on from the consensus
        params.copy_(mean)
        distance = self.mean(float(own_distance))
        if not self.is_leader:
            return distance
        if not math.isfinite(distance):
            logging.getLogger(__name__).warning(
                f"{self.learner.where}: the learners' mean model is not finite: a loss "
                "or a gradient has been NaN or infinite on one of them, from which the "
                "others have it. Skip the updates of such a batch (optimizer.step(), "
                "not session.step()), or lower the learning rate"
            )
        elif distance and self._keeps_equal():
            logging.getLogger(__name__).warning(
                f"{self.learner.where}: the learners' models differ (consensus "
                f"distance {distance:.2g}), and {self.name} keeps them equal: after "
                "gradients were averaged, a learner has changed them or the parameters "
                "in its own way (noise, another optimizer, a loaded state); learner "
                "0's model is validated and saved"
            )
        return distance

    def _keeps_equal(self) -> bool:
        equal = self.algorithm.equal_replicas(self.learner)
        return len(equal) == self.learner.size > 1

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

    def metrics(self) -> dict[str, float]:
        """Return figures since the last call: seconds, bytes, exchanges, staleness."""
        spent = dict(self.driver.spent)
        self.driver.spent.clear()
        zeros = {"comm_time": 0.0, "wait_time": 0.0, "bytes": 0.0}
        return {**zeros, **spent, **self.algorithm.metrics()}

    # The state

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

    def restart_from_model(self) -> None:
        """Begin anew, between epochs, at learner 0's model.

        All learners call it, for example after a state was loaded into the model. The
        algorithm forgets what it remembers; the optimizer keeps its state.

        Raises:
            InputError: within an epoch, or inside the consensus.
        """
        learner, lifecycle = self.learner, self._lifecycle
        self._check_between_epochs("restart_from_model")
        self._check_others_come()
        self._changes.check_same_parameters()
        learner.check_storage()
        learner.forget_algorithm()
        self.algorithm = build(self.name, self._options, learner)
        lifecycle.algorithm = self.algorithm
        self._run(lifecycle.start())
        self._changes.forget_load()

    # What a call may not find

    def _check(self) -> None:
        """Raise InputError where this learner cannot go on with its training.

        It cannot if the session was left, the model was loaded, or holds the consensus:
        what is trained there would be lost when the learner leaves it.
        """
        self._check_open()
        self._changes.check_not_loaded()
        if self._own is not None:
            raise InputError(
                f"{self.learner.where}: the model holds the consensus: leave it, by "
                "the end of its `with` or leave_consensus(), before training goes on"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                f"{self.learner.where}: the session was left: begin a new one"
            )

    def _check_averaged(self) -> None:
        learner = self.learner
        if learner.accumulated is not None:
            raise InputError(
                f"{learner.where}: the optimizer has stepped on gradients that were "
                "not averaged: leave no_sync() for the last backward pass of each "
                "update"
            )
        averages = self.algorithm.wants_gradients and learner.size > 1
        if averages and not self._averaged and self._changes.updated():
            raise InputError(
                f"{learner.where}: the parameters were updated without a gradient that "
                "was averaged over the learners: where it comes from something else "
                "than loss.backward() (autograd.grad, torch.func, by hand), call "
                "session.average_gradients() once .grad has it, or use an algorithm "
                "that averages models (local_sgd, bmuf, adpsgd)"
            )

    def _check_followed(self) -> None:
        learner = self.learner
        followed = learner.steps != self._lifecycle.epoch_start
        if learner.size > 1 and learner.stepped and not followed:
            raise InputError(
                f"{learner.where}: the optimizer has stepped, and session.step() was "
                "not called in this epoch, so that the learners know nothing of each "
                "other's updates: call it after each optimizer.step()"
            )

    def _check_between_epochs(self, call: str) -> None:
        """Raise InputError within an epoch, where what is under way would be mixed in.

        Args:
            call: the name of the method that is for between epochs.
        """
        learner, lifecycle = self.learner, self._lifecycle
        self._check_open()
        if lifecycle.gossiping or learner.steps != lifecycle.epoch_start:
            raise InputError(
                f"{learner.where}: {call} is for between epochs: call it after "
                "finish() or consensus(), or before the first step"
            )
        if self._own is not None:
            raise InputError(
                f"{learner.where}: the model holds the consensus: leave it before a "
                f"state is loaded and {call} is called"
            )

    def _check_others_come(self) -> None:
        """Raise InputError where others may not come: they have paused, or all left."""
        self._check_open()
        if self._may_pause:
            raise InputError(
                f"{self.learner.where}: this training can stop within an epoch "
                "(agree_to_stop, resume), so that another learner may have paused and "
                "would be waited for without end: do what waits for all (a new "
                "WorkQueue, barrier(), mean(), ...) before the first step of an epoch, "
                "or after finish()"
            )

    # Programs of the algorithm

    def _run(self, program: Generator[Effect, Any, Any]) -> Any:
        return self.driver.run(program)

    def _train(self, program: Generator[Effect, Any, Any]) -> Any:
        return self.driver.run(program, in_epoch=True)

    def _after_bucket(self, number: int) -> None:
        self._train(self._lifecycle.after_bucket(number))

    def _after_backward(self) -> None:
        self._train(self._lifecycle.after_backward())
        self._averaged = True
