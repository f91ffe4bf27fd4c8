"""A session ties a learner, its algorithm and its driver to a training loop."""

import contextlib
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.attached import Attached
from espnet_distopt.core.driver import Driver
from espnet_distopt.core.effects import AllReduceMean, Barrier, Effect
from espnet_distopt.errors import InputError


class Session(Attached):
    """One learner's part in a distributed training run.

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
        algorithm: a name in `espnet_distopt.algorithms.ALGORITHMS`.
        driver: what carries out the communication; by default the process group.
        options: the algorithm's options.

    Raises:
        InputError: unknown algorithm or option, an impossible number of learners, a
            model or optimizer that cannot be trained so (`refusals`), or learners that
            have different ones.

    While it is open the parameters lie in one buffer: leave it by `with`, or `close`.
    A parameter that is frozen, unfrozen, moved or added to the optimizer meanwhile, or
    a state that is loaded into the model, is an InputError of the next step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        algorithm: str,
        driver: Driver | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, algorithm, driver, options)
        self._stop_requested = False
        self._stop_at: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._lifecycle.gossiping and not self._closed:
                self.finish()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self.close(error)

    def begin_batch(self, samples: float) -> None:
        """At the start of each batch: how many samples it has (see `allreduce`).

        At the start of an epoch the gossip begins here, if this is called, so that a
        slow learner's neighbours need not wait for its first step; else with that step.
        """
        self._check()
        self.learner.samples = float(samples)
        self._run(self._lifecycle.begin_batch())

    def step(self) -> None:
        """Once after each attempted step, also one whose update was skipped.

        Raises:
            InputError: what is trained was changed or moved, or a state was loaded.
        """
        self._check()
        self.learner.check_storage()
        self._changes.check_trained(self.algorithm.may_freeze)
        self._changes.count_update()
        self._train(self._lifecycle.step())
        self._changes.remember()

    def finish(self) -> bool:
        """End an epoch: wait for all learners, and end their gossip and blocks.

        Returns False where another learner has stopped within the epoch meanwhile: this
        one has paused with it, and is to do as after `pause`.
        """
        self._check()
        finished: bool = self._train(self._lifecycle.finish())
        self._changes.remember()
        return finished

    def barrier(self) -> None:
        """Wait for all learners, however long they take, while all of them live.

        Raises:
            PeerLostError: a learner is lost; the message names it.
        """
        self._run(_one(Barrier()))

    def request_stop(self) -> None:
        """Ask all learners to stop soon; may be called by a signal handler."""
        self._stop_requested = True

    def agree_to_stop(self) -> bool:
        """After a step, or before the first: whether this learner is to stop now.

        Learners that step together stop at the same step, which is at most a block
        away. A learner that is told to stop calls `pause` and `state_dict`, and ends.
        """
        driver, learner = self.driver, self.learner
        if self._stop_at is None:
            if self._stop_requested:
                driver.announce_stop()
            elif not driver.stop_announced():
                return False
            # Steps of this epoch: in earlier ones some may have made more than others.
            start = self._lifecycle.epoch_start
            step = self.algorithm.next_stop(learner) - start
            agreed = driver.propose_stop(self.algorithm.lockstep(learner), step)
            self._stop_at = start + agreed
        return learner.steps >= self._stop_at and self.algorithm.can_pause(learner)

    def pause(self) -> None:
        """At a stop within an epoch: wait until nothing is in flight anywhere."""
        self._train(self._lifecycle.pause())
        self._changes.remember()

    def enter_consensus(self) -> float:
        """After `finish`: set the consensus model aside the learner's parameters.

        Returns the consensus distance ||x_i - xbar|| / ||xbar||, averaged over them.
        """
        self._check()
        params = self.learner.params
        own = params.clone()
        mean: Tensor = self._run(self._lifecycle.consensus())
        distance = (own - mean).norm() / mean.norm().clamp_min(1e-30)
        self._own = own.copy_(params)  # which may go on from the consensus
        params.copy_(mean)
        return self.mean(float(distance))

    def mean(self, value: float) -> float:
        """Return the mean of `value` over the learners; all take part."""
        tensor = self.learner.params.new_tensor([value], dtype=torch.float64)
        return float(self._run(_one(AllReduceMean(tensor))))

    def leave_consensus(self) -> None:
        """Give the learner its own parameters back, if it is in the consensus."""
        if self._own is not None:
            self.learner.params.copy_(self._own)
            self._own = None
            self._changes.remember()

    @contextlib.contextmanager
    def consensus(self) -> Generator[float, None, None]:
        """End the epoch; inside, the model's parameters are the consensus model.

        All learners take part. Gives the consensus distance.
        """
        self.finish()
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

        Raises:
            InputError: the state was saved by another algorithm, by another number of
                learners (block momentum), or for another model.
        """
        if state["algorithm"] != self.name:
            raise InputError(
                f"the saved state is of {state['algorithm']}, not of {self.name}"
            )
        self.learner.load_state_dict(state["learner"])
        self._lifecycle.epoch_start = state["epoch_start"]
        self.algorithm.load_state_dict(state["state"])
        self._changes.forget_load()


def _one(effect: Effect) -> Generator[Effect, Any, Any]:
    """Return the program of a single effect."""
    return (yield effect)
