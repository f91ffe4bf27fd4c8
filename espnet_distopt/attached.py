"""How a session attaches to a model and an optimizer, and detaches from them.

While it is attached, the parameters are views of one flat buffer and hooks watch the
optimizer and the model. `close` gives each parameter storage of its own and removes the
hooks, so that nothing of the session stays behind.
"""

import contextlib
import logging
from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.algorithms import build, options
from espnet_distopt.algorithms.joining import Joining, can_be_joined, check_joinable
from espnet_distopt.algorithms.lifecycle import Lifecycle
from espnet_distopt.core.agreement import Items, agree, items
from espnet_distopt.core.changes import Changes
from espnet_distopt.core.driver import Driver, Stateful
from espnet_distopt.core.effects import Effect
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.refusals import (
    check_algorithm,
    check_model,
)
from espnet_distopt.distributed.launcher import check_process_group
from espnet_distopt.distributed.nccl import advised
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.distributed.state_transfer import check_sendable
from espnet_distopt.errors import InputError


class Attached:
    """A learner and its algorithm, attached to a model and an optimizer until `close`.

    Args:
        model: the module that is trained, on its final device.
        optimizer: the optimizer over its parameters.
        algorithm: the name of an algorithm.
        driver: what carries out the communication; None takes the process group.
        options: the options of the algorithm.
        heartbeat_seconds: seconds of silence after which a learner counts as lost.
        carries: what the training loop keeps beside the session; None if nothing.

    Raises:
        InputError: the algorithm cannot train this model with this optimizer, as
            `session.Session` says. Nothing stays behind then.
    """

    learner: Learner

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        algorithm: str,
        driver: Driver | None,
        options: Mapping[str, Any],
        heartbeat_seconds: float = 30,
        carries: Stateful | None = None,
    ) -> None:
        if driver is None:
            check_process_group()
        check_model(model, optimizer)
        self.driver: Driver = driver or ProcessGroupDriver(heartbeat_seconds)
        self.name = algorithm
        self._options = options
        self._carries = carries
        self._model = model
        self._own: Tensor | None = None
        self._closed = False
        self._may_pause = False
        self._hold = contextlib.ExitStack()
        try:
            with advised():
                self._take_hold(optimizer)
        except BaseException as error:
            self.close(error)
            raise

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
        place = Joining(
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

    def close(self, error: BaseException | None = None) -> None:
        """Leave the training and detach.

        Args:
            error: the error that ends the training, which the other learners are told;
                None if nothing has failed.
        """
        self._closed = True
        try:
            self.driver.leave(error)
        finally:
            self._hold.close()

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

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                f"{self.learner.where}: the session was left: begin a new one"
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
                f"{self.learner.where}: agree_to_stop() was asked in this epoch, so "
                "that another learner may have paused and would be waited for without "
                "end: do what waits for all (a new WorkQueue, barrier(), mean(), ...) "
                "before the first agree_to_stop() of an epoch, or after finish()"
            )

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

    def _check_averaged(self) -> None:
        learner = self.learner
        if learner.accumulated is not None:
            raise InputError(
                f"{learner.where}: the optimizer has stepped on gradients that were "
                "not averaged: leave no_sync() for the last backward pass of each "
                "update"
            )

    def _run(self, program: Generator[Effect, Any, Any]) -> Any:
        return self.driver.run(program)

    def _train(self, program: Generator[Effect, Any, Any]) -> Any:
        return self.driver.run(program, in_epoch=True)

    def _after_bucket(self, number: int) -> None:
        self._train(self._lifecycle.after_bucket(number))

    def _after_backward(self) -> None:
        self._train(self._lifecycle.after_backward())
