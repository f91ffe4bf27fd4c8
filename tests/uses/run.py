"""The module runs a row in one learner's process, and records what oracles check."""

import itertools
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.core.model_buffers import running_statistics
from espnet_distopt.distributed import process_group
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session
from tests.uses.columns import Column
from tests.uses.use import STEPS, Turn, Use

Vector = NDArray[np.float64]
"""Tensors in one float64 array; a pipe can carry it, and it holds float32 exactly."""


@dataclass
class Pass:
    """A backward pass on one learner.

    Attributes:
        samples: the number of samples of the batch.
        before: the gradients before the pass.
        local: the gradients of this batch alone.
        after: the gradients after the pass.
    """

    samples: int
    before: Vector
    local: Vector
    after: Vector


@dataclass
class Record:
    """One learner's record of one model, since its session began or began anew.

    Attributes:
        names: the names of the optimizer's parameters.
        sizes: the number of elements of each parameter.
        start: the parameters after the session had begun.
        buffers: all buffers after the session had begun.
        before: the parameters before each step of the session.
        after: the parameters after each step of the session.
        rates: each parameter's learning rate at each step.
        moments: the optimizer's moments after each step.
        passes: the backward passes, for algorithms that average gradients.
        consensus: the parameters of the consensus model.
        own: the parameters after the consensus.
        updates: the number of updates that the session has counted.
        statistics: BatchNorm's statistics before the consensus and in it.
    """

    names: list[str]
    sizes: list[int]
    start: Vector
    buffers: Vector
    before: list[Vector] = field(default_factory=list)
    after: list[Vector] = field(default_factory=list)
    rates: list[Vector] = field(default_factory=list)
    moments: list[Vector] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    consensus: Vector = field(default_factory=lambda: np.zeros(0))
    own: Vector = field(default_factory=lambda: np.zeros(0))
    updates: int = 0
    statistics: tuple[Vector, Vector] = (np.zeros(0), np.zeros(0))


@dataclass
class Outcome:
    """The result of a row on one learner.

    Attributes:
        end: `right`, `refused` (an InputError), `lost` (a PeerLostError) or `broken`
            (any other error).
        text: the text of the error.
        records: the record of each model.
    """

    end: str
    text: str = ""
    records: list[Record] = field(default_factory=list)


class Run:
    """One learner's run of a row, with a session, or without one (the plain loop)."""

    def __init__(self, use: Use, column: Column | None, rank: int, size: int) -> None:
        self.use = use
        self.rank = rank
        self.k = 0
        self.sessions: list[Session] = []
        self.records: list[Record] = []
        self._column = column
        self._size = size
        self._drivers: list[ProcessGroupDriver] = []

    @property
    def session(self) -> Session | None:
        return self.sessions[0] if self.sessions else None

    def go(self) -> None:
        """Make all steps, and record the consensus."""
        self._open()
        turn: Turn = self
        for self.k in range(STEPS):
            self.use.step(turn)
        if self._column is not None:
            self._look_at_the_consensus()
            self.close(None)

    def _look_at_the_consensus(self) -> None:
        for session, record, (model, optimizer) in zip(
            self.sessions, self.records, self.use.pairs, strict=True
        ):
            statistics = _flat(running_statistics(model))
            with session.consensus():
                record.consensus = _flat(_tracked(optimizer))
                record.statistics = statistics, _flat(running_statistics(model))
            record.own = _flat(_tracked(optimizer))
            record.updates += session.learner.updates

    def _open(self) -> None:
        if self._column is None:
            return
        for model, optimizer in self.use.pairs:
            driver = ProcessGroupDriver(silence=10)
            self._drivers.append(driver)
            options = self._column.given(self._size)
            name = self._column.algorithm
            self.sessions.append(Session(model, optimizer, name, driver, **options))
            self.records.append(_begin(model, optimizer))

    def close(self, error: BaseException | None) -> None:
        """End the sessions, and the drivers of sessions that could not begin."""
        kind = type(error) if error else None
        sessions, self.sessions = self.sessions, []
        drivers, self._drivers = self._drivers, []
        for session in sessions:
            session.__exit__(kind, error, None)
        for driver in drivers[len(sessions) :]:
            driver.leave(error)

    def batch(self, number: int = 0) -> tuple[Tensor, Tensor]:
        seed = 1000 * self.rank + 10 * self.k + number
        generator = torch.Generator().manual_seed(seed)
        for session in self.sessions:
            session.begin_batch(self._samples)
        x = torch.randn(self._samples, 3, generator=generator)
        return x, torch.randn(self._samples, 2, generator=generator)

    @property
    def _samples(self) -> int:
        return 4 + 2 * self.rank

    def backward(
        self,
        loss: Tensor,
        like: Tensor | None = None,
        by: Callable[[], None] | None = None,
    ) -> None:
        by = by or loss.backward
        if self._column is None or not self._column.gradients or self._size == 1:
            by()
            return
        expected = loss if like is None else like
        pairs = self.use.pairs
        tracked = [_tracked(optimizer) for _, optimizer in pairs]
        before = [_gradients(parameters) for parameters in tracked]
        local = [_local(expected, parameters) for parameters in tracked]
        by()
        for record, parameters, *grads in zip(
            self.records, tracked, before, local, strict=True
        ):
            if np.any(grads[1]):
                after = _gradients(parameters)
                record.passes.append(Pass(self._samples, *grads, after))

    def average(self) -> None:
        for session in self.sessions:
            session.average_gradients()

    def stepped(self, pair: int = 0) -> None:
        if not self.sessions:
            return
        _, optimizer = self.use.pairs[pair]
        record = self.records[pair]
        before = _flat(_tracked(optimizer))
        record.rates.append(_rates(optimizer))
        self.sessions[pair].step()
        record.before.append(before)
        record.after.append(_flat(_tracked(optimizer)))
        record.moments.append(_moments(optimizer))

    def began_anew(self) -> None:
        self.records = [_begin(*pair) for pair in self.use.pairs if self.sessions]
        for session, record in zip(self.sessions, self.records, strict=True):
            record.updates = -session.learner.updates

    def reopen(self) -> None:
        self.close(None)
        self.records = []
        self._open()


def attempt(kind: type[Use], column: Column, rank: int, size: int) -> Outcome:
    """Run a row with a session, and return its result."""
    run: Run | None = None
    try:
        run = Run(kind(rank), column, rank, size)
        run.go()
        return Outcome("right", records=run.records)
    except Exception as error:
        if run is not None:
            run.close(error)
        ends = {InputError: "refused", PeerLostError: "lost"}
        end = ends.get(type(error), "broken")
        text = traceback.format_exc() if end == "broken" else str(error)
        return Outcome(end, text)


def attempt_all(
    kinds: list[type[Use]], column: Column, rank: int, size: int
) -> list[Outcome]:
    """Run one row after another, even if some of them fail."""
    outcomes = []
    for number, kind in enumerate(kinds):
        # A learner that is refused early has made fewer drivers than the other, but
        # both must number their drivers alike.
        process_group._serial = itertools.count(100 * (number + 1))
        outcomes.append(attempt(kind, column, rank, size))
    return outcomes


def plain(kind: type[Use]) -> list[Vector]:
    """Return the parameters at the end of the loop without a session."""
    run = Run(kind(0), None, 0, 1)
    run.go()
    return [_flat(_tracked(optimizer)) for _, optimizer in run.use.pairs]


def _begin(model: nn.Module, optimizer: Optimizer) -> Record:
    known = {id(p): name for name, p in model.named_parameters()}
    tracked = _tracked(optimizer)
    return Record(
        names=[known.get(id(p), "?") for p in tracked],
        sizes=[p.numel() for p in tracked],
        start=_flat(tracked),
        buffers=_flat(list(model.buffers())),
    )


def _tracked(optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's parameters, each once."""
    found = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    return list(found.values())


def _flat(tensors: list[Any]) -> Vector:
    """Copy tensors into one vector."""
    parts = [t.detach().to(torch.float64).reshape(-1).numpy() for t in tensors]
    return np.concatenate([np.zeros(0), *parts])


def _gradients(parameters: list[Tensor]) -> Vector:
    return _flat([_dense(p.grad, p) for p in parameters])


def _local(loss: Tensor, parameters: list[Tensor]) -> Vector:
    """Return the gradient of this learner's batch alone."""
    trained = [p for p in parameters if p.requires_grad]
    if not trained:
        return _flat([torch.zeros_like(p) for p in parameters])
    found = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
    of = {id(p): gradient for p, gradient in zip(trained, found, strict=True)}
    return _flat([_dense(of.get(id(p)), p) for p in parameters])


def _dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient


def _rates(optimizer: Optimizer) -> Vector:
    rates = {
        id(p): float(group["lr"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    return np.array([rates[id(p)] for p in _tracked(optimizer)])


def _moments(optimizer: Optimizer) -> Vector:
    names = ("exp_avg", "exp_avg_sq", "momentum_buffer")
    states = [optimizer.state.get(p, {}) for p in _tracked(optimizer)]
    found = [state.get(name) for name in names for state in states]
    return _flat([moment for moment in found if moment is not None])
