"""A plain loop around each of the methods, beside other implementations.

Four processes train a model whose computing is emulated by sleep. Every algorithm and
the peers are measured. Learners either have equal shares of an epoch's batches, or take
each batch from a queue. Before each run of this project's methods there are some steps
that are not counted, because the first exchange allocates memory.
"""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch.distributed as dist
from emulated.learners import Namespace, launch
from emulated.methods import (
    PEERS,
    Emulated,
    MeasuredMethod,
    MeasuredTraining,
    begin,
)

from espnet_distopt import WorkQueue
from espnet_distopt.algorithms import ALGORITHMS
from straggling.frame import THROUGHPUT, Epoch, Figures, Loop, Row, Run, of_epochs

LEARNERS = 4
NODE = 2
"""The number of learners of a node, for hadpsgd."""
PARAMETERS = 1_000_000
STEP_SECONDS = 0.1
WARM_UP = 8
"""Steps that are not counted: two blocks of those methods that have blocks."""
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"period": 4} for name in ("bmuf", "bmuf_adam", "local_sgd", "slowmo")},
    "diloco": {"period": 4},
    "hadpsgd": {"per_node": NODE},
    "PostLocalSGD": {"period": 4},
    "fairscale SlowMo": {"period": 4},
    "hivemind": {"period": 32},
}


def rows(slowdown: float, quick: bool) -> list[Row]:
    """Return the rows; the first has equal learners without communication."""
    many, few = (160, 16) if quick else (960, 48)

    def row(name: str, slowdown: float, queue: bool, slow: int, steps: int) -> Row:
        method = MeasuredMethod(
            name=name,
            options=OPTIONS.get(name, {}),
            adam=name == "bmuf_adam",
        )
        run = Run(
            method=method,
            learners=LEARNERS,
            slowdown=slowdown,
            steps=steps,
            queue=queue,
            slow=slow,
            once=slow == LEARNERS,
        )
        label = method.label + (", queue" if queue else "")
        return Row(label=label, run=run, failure=method.missing())

    queued = ("none", "adpsgd", "hadpsgd", "hivemind")
    shared = [n for n in (*ALGORITHMS, *PEERS) if n not in ("hivemind", "bare TCP")]
    return [
        row("none", 1.0, False, 1, many),
        *(
            row(name, slowdown, True, NODE if name == "hadpsgd" else 1, many)
            for name in queued
        ),
        *(row(name, slowdown, False, LEARNERS, few) for name in shared),
    ]


def _batches(run: Run, rank: int, training: MeasuredTraining) -> Iterator[int]:
    """Yield the batches of one learner."""
    if not run.queue:
        yield from range(rank, run.steps, LEARNERS)
    elif training.session is not None:
        # Learners that step together train on one item of the queue together.
        items = run.steps // run.slow
        yield from WorkQueue(training.session, items).read(lambda numbers: numbers)
    else:
        store = dist.distributed_c10d._get_default_store()
        while (batch := store.add("batches", 1) - 1) < run.steps:
            yield batch


def _warm_up(method: MeasuredMethod, rank: int) -> None:
    """Load what one of this project's methods needs, in steps that take no time."""
    if method.ours:
        training = begin(method, Emulated(PARAMETERS, 0.0, rank))
        for _ in range(WARM_UP):
            training.step()
        training.finish()
        assert training.session is not None
        training.session.close()


def train(rank: int, run: Run) -> Epoch:
    """Train for an epoch as learner `rank`."""
    slow = run.slowdown if rank == LEARNERS - 1 else 1.0
    model = Emulated(PARAMETERS, STEP_SECONDS * slow, rank)
    _warm_up(run.method, rank)
    training = begin(run.method, model)
    dist.barrier()
    began = time.monotonic()
    ends = []
    for _ in _batches(run, rank, training):
        training.step()
        ends.append(time.monotonic())
    exchanges = training.exchanges()
    training.finish()
    ended = time.monotonic()
    return Epoch(began=began, steps=ends, ended=ended, exchanges=exchanges)


def measure(run: Run) -> Figures:
    """Make a run, and return its figures.

    Raises:
        LearnersFailedError: the method has failed.
    """
    timeout = 60 + 4 * run.steps / LEARNERS * STEP_SECONDS * run.slowdown
    places = [Namespace()] * LEARNERS
    return of_epochs(run, launch(places, train, run, timeout=timeout))


def _exchanges(row: Row, _: Row) -> str:
    found = median(figures.exchanges for figures in row.found)
    return f"{found:.0f}" if found else ""


def _caption(found: Sequence[Row], often: str) -> str:
    many, few = found[0].run.steps, found[-1].run.steps
    return (
        f"{LEARNERS} processes train over gloo; one of them is "
        f"{found[-1].run.slowdown:g} times slower. The figures are steps per second "
        f"of all learners, relative to {LEARNERS} equal learners without "
        f"communication. Computing is emulated: a step sleeps {STEP_SECONDS} s; the "
        f"optimizer's step and the communication of {PARAMETERS:,} parameters are "
        "real. The middle of an epoch goes from the slow learner's first step to the "
        "first learner's last; the whole epoch goes until all learners have finished. "
        f"With a queue an epoch has {many} steps, and a figure is {often}; otherwise "
        f"learners have equal shares of {few} steps, and a figure is one run. Before "
        f"each run of this project's methods, {WARM_UP} steps are not counted. The "
        "bound is (n - m + m/s) / n, where m learners are as slow as the slow one: 1 "
        f"with a queue ({NODE} for hadpsgd), otherwise all. Exchanges are those of "
        "one learner, for methods that average when they can."
    )


LOOP = Loop(
    rows=rows,
    measure=measure,
    columns=(*THROUGHPUT, ("exchanges", _exchanges)),
    caption=_caption,
)
