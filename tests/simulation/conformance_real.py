"""The module runs a training in real processes, whose sessions may be stopped."""

import random
import time
from collections.abc import Iterable
from typing import Any

import torch

from espnet_distopt.core.effects import AllGather, AllReduceMean
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue
from tests.simulation.conformance import (
    OPTIMIZERS,
    Net,
    Part,
    Training,
    from_file,
    gradient,
    to_file,
)

STOP_AFTER = 5
"""The number of steps after which learner 0 asks all learners to stop."""
ENOUGH = 8
"""The number of steps after which learners that do not step with learner 0 wait until
it has asked."""


def real(training: Training) -> list[Part]:
    """Train in this process, and return the record of each of its sessions."""
    part = session(training, None)
    return [part, session(training, part)] if training.stops else [part]


def session(training: Training, earlier: Part | None) -> Part:
    """Train in one session, which goes on where an earlier one was stopped."""
    model = Net()
    made = OPTIMIZERS[training.optimizer](model.parameters())
    driver = ProcessGroupDriver(recording=True)
    with Session(model, made, training.name, driver, **training.options) as run:
        if earlier:
            state = from_file(earlier.state)
            made.load_state_dict(state.pop("optimizer"))
            run.load_state_dict(state)
        loop = RealLoop(run, training, earlier)
        for number in range(len(training.epochs)):
            if not loop.epoch(number):
                break
        state = run.state_dict() | {"optimizer": made.state_dict()}
        params = run.learner.params.tolist()
        assert driver.record is not None
        sent = run.metrics()["bytes"] - loop.beside
        file = to_file(state)
        return Part(params, driver.record, loop.trained, file, loop.left, sent)


class RealLoop:
    """The training loop of a session.

    Attributes:
        trained: for each epoch the items.
        left: of the work queue where the session was stopped.
        beside: bytes that only a session sends: three numbers by which learners agree
            that they train the same model, and the consensus distance, one an epoch.
    """

    def __init__(self, run: Session, training: Training, earlier: Part | None) -> None:
        self.trained: list[list[int]] = []
        self.left: Any = None
        agreement = AllGather(torch.zeros(3, dtype=torch.int64))
        self.beside = agreement.bytes_sent(run.learner.size)
        self._run, self._training, self._earlier = run, training, earlier
        self._stops = training.stops and earlier is None
        rank = run.learner.rank
        weigh = run.begin_batch if training.uneven else None
        self._backward = gradient(run._model, rank, weigh)
        self._pauses = random.Random(rank)
        slow = training.slow if rank >= run.learner.size - 2 else 1.0
        self._longest = training.pause * slow
        self._alone = 0 not in run.algorithm.lockstep(run.learner)

    def epoch(self, number: int) -> bool:
        """Return whether the training has come to its end."""
        run, epoch, done, state = self._run, self._training.epochs[number], 0, None
        if self._earlier and number == 0:
            done, state = len(self._earlier.items[0]), self._earlier.queue
        self.trained.append([])
        if isinstance(epoch, int):
            queue = WorkQueue(run, epoch, state=state)
            stopped = self._stopped(queue.read(list), number)
        else:
            queue = None
            stopped = self._stopped(range(done, epoch[run.learner.rank]), number)
        if stopped:
            run.pause()
        if stopped or not run.finish():
            self.left = queue.state_dict() if queue else None
            return False
        run.enter_consensus()
        run.leave_consensus()
        self.beside += AllReduceMean(torch.zeros(1).double()).bytes_sent(
            run.learner.size
        )
        return True

    def _stopped(self, items: Iterable[int], number: int) -> bool:
        """Train on `items`, and return whether this learner was told to stop."""
        if self._told_to_stop():
            return True
        for item in items:
            self._step(100 * number + item)
            self.trained[-1].append(100 * number + item)
            if self._stops:
                self._see_to_the_stop(len(self.trained[-1]))
            if self._told_to_stop():
                return True
        return False

    def _told_to_stop(self) -> bool:
        return self._training.stops and self._run.agree_to_stop()

    def _see_to_the_stop(self, steps: int) -> None:
        """Ask all learners to stop, or delay the epoch's end until that is asked."""
        run = self._run
        if run.learner.rank == 0 and steps == STOP_AFTER:
            run.request_stop()
        while self._alone and steps >= ENOUGH and not run.driver.stop_announced():
            time.sleep(0.001)

    def _step(self, item: int) -> None:
        time.sleep(self._pauses.uniform(0, self._longest))
        optimizer = self._run.learner.optimizer
        optimizer.zero_grad()
        self._backward(item)
        optimizer.step()
        self._run.step()
