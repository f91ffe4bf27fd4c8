"""The module checks records of a run against the algorithm's equations, in float64."""

import itertools
import math

import numpy as np

from tests.uses.columns import Column
from tests.uses.run import Record, Vector
from tests.uses.use import Use


def faults(column: Column, kind: type[Use], learners: list[Record]) -> list[str]:
    """Return the faults of one model in a run that has ended.

    Args:
        column: the algorithm.
        kind: the row.
        learners: the record of each learner.
    """
    check = _Check(kind.rounding)
    first = learners[0]
    for other in learners[1:]:
        check.same("parameters at the start", first.start, other.start)
        check.same("buffers at the start", first.buffers, other.buffers)
        check.same("the consensus", first.consensus, other.consensus)
    _moved(check, kind, first)
    _statistics(check, learners)
    if column.gradients:
        _gradients(check, column, learners)
    elif column.algorithm == "adasum":
        _adasum(check, learners)
    elif column.period:
        _blocks(check, column, learners)
    else:
        check.close("the mean", first.consensus, _conserved(learners))
    return check.faults


class _Check:
    def __init__(self, rounding: float) -> None:
        self.rounding = rounding
        self.faults: list[str] = []

    def same(self, what: str, a: Vector, b: Vector) -> None:
        if not np.array_equal(a, b, equal_nan=True):
            self.faults.append(f"{what}: learners differ")

    def close(self, what: str, found: Vector, expected: Vector) -> None:
        finite = np.abs(expected[np.isfinite(expected)])
        largest = float(finite.max(initial=0.0))
        scale = self.rounding * max(1.0, largest)
        if not np.allclose(found, expected, rtol=0, atol=scale, equal_nan=True):
            off = np.abs(found - expected).max()
            self.faults.append(f"{what}: off by {off:.2g}")


def _moved(check: _Check, kind: type[Use], record: Record) -> None:
    """Check that the run trains; if nothing moves, it agrees with every equation."""
    start = 0
    for name, size in zip(record.names, record.sizes, strict=True):
        part = slice(start, start := start + size)
        moved = not np.array_equal(record.start[part], record.consensus[part])
        if size and moved == (name in kind.still):
            check.faults.append(f"{name} has {'' if moved else 'not '}moved")


def _statistics(check: _Check, learners: list[Record]) -> None:
    mean = np.mean([record.statistics[0] for record in learners], axis=0)
    for record in learners:
        check.close("BatchNorm's statistics", record.statistics[1], mean)


def _gradients(check: _Check, column: Column, learners: list[Record]) -> None:
    """Check that replicas stay equal and that gradients are the mean over all samples.

    With `d1d_grad` they are that of the step before.
    """
    first = learners[0]
    for other in learners[1:]:
        for k, pair in enumerate(zip(first.after, other.after, strict=True)):
            check.same(f"step {k}", *pair)
    check.same("the consensus and the parameters", first.consensus, first.after[-1])
    late = np.zeros_like(first.start)
    for k, passes in enumerate(zip(*(r.passes for r in learners), strict=True)):
        samples = [p.samples for p in passes]
        with np.errstate(invalid="ignore"):
            mean = np.average([p.local for p in passes], axis=0, weights=samples)
        late, mean = mean, late if column.algorithm == "d1d_grad" else mean
        held = 0.0 if column.algorithm == "d1d_grad" else passes[0].before
        for learner, p in enumerate(passes):
            check.close(f"learner {learner}, gradient {k}", p.after, held + mean)
    if not first.passes:
        check.faults.append("no backward pass was seen")


def _conserved(learners: list[Record]) -> Vector:
    """Return the start plus the mean of the learners' own updates."""
    ends = []
    for record in learners:
        begins = [record.start, *record.after[:-1]]
        own = sum(b - a for a, b in zip(begins, record.before, strict=True))
        ends.append(record.start + own)
    mean: Vector = np.mean(ends, axis=0)
    return mean


def _blocks(check: _Check, column: Column, learners: list[Record]) -> None:
    """Replay the block filter on the learners' parameters at the end of each block."""
    first = learners[0]
    begin = theta = first.start
    delta = np.zeros_like(theta)
    last: Vector | None = None
    agreeing = 0.0
    steps = len(first.before)
    for k in range(steps):
        ends = (k + 1) % column.period == 0
        if not ends:
            for record in learners:
                check.same(
                    f"within a block, step {k}", record.before[k], record.after[k]
                )
            if k < steps - 1:
                continue
        if column.algorithm == "slowmo":
            block = slice(k - k % column.period, k + 1)
            rates = np.mean([r.rates[block] for r in learners], axis=(0, 1))
            rates = np.repeat(rates, first.sizes)
            delta = delta if last is None else delta * rates / last
            last = rates
        mean = np.mean([record.before[k] for record in learners], axis=0)
        eta, zeta = column.momentum, column.block_lr
        if column.algorithm in ("bmuf", "bmuf_adam", "slowmo", "diloco") and eta:
            agrees = float((mean - begin) @ delta) > 0
            block = range(k - k % column.period, k + 1)
            taken = np.mean([_updates(record, block) for record in learners])
            agreeing = agreeing + taken if agrees else 0.0
            part = 1 - math.exp(-agreeing / 1000)
            eta, zeta = part * eta, 1 + part * (zeta - 1)
            if not agrees:
                theta = begin
        delta = eta * delta + zeta * (mean - begin)
        theta = theta + delta
        begin = theta + (eta * delta if column.nesterov else 0.0)
        for record in learners:
            reached = record.after[k] if ends else record.own
            check.close(f"the block's start after step {k}", reached, begin)
            check.same(
                f"block of step {k}", reached, first.after[k] if ends else first.own
            )
            if ends:
                _moments(check, column, record.moments[k], first.moments[k])
    check.close("the model", first.consensus, begin if column.from_start else theta)


def _updates(record: Record, block: range) -> int:
    """Return in how many steps of a block the optimizer has moved the parameters."""
    begun = [record.after[k - 1] if k else record.start for k in block]
    ends = [record.before[k] for k in block]
    return sum(not np.array_equal(*pair) for pair in zip(begun, ends, strict=True))


def _moments(check: _Check, column: Column, own: Vector, first: Vector) -> None:
    if not np.isfinite(own).all():
        check.faults.append("moments are not finite")
    if column.algorithm in ("bmuf", "bmuf_adam"):
        check.same("moments", own, first)


def _adasum(check: _Check, learners: list[Record]) -> None:
    """Replay Adasum of two learners, tensor by tensor, after every step."""
    first = learners[0]
    shared = first.start
    for k in range(len(first.before)):
        a, b = (record.before[k] - shared for record in learners)
        bounds = np.cumsum([0, *first.sizes])
        parts = [_combined(a[i:j], b[i:j]) for i, j in itertools.pairwise(bounds)]
        expected = shared + np.concatenate([np.zeros(0), *parts])
        for record in learners:
            check.close(f"step {k}", record.after[k], expected)
            check.same(f"step {k}", record.after[k], first.after[k])
        shared = first.after[k]
    check.same("the consensus and the parameters", first.consensus, shared)


def _combined(a: Vector, b: Vector) -> Vector:
    dot, aa, bb = a @ b, a @ a, b @ b
    if aa == 0 or bb == 0:
        return a + b
    combined: Vector = (1 - dot / (2 * aa)) * a + (1 - dot / (2 * bb)) * b
    return combined
