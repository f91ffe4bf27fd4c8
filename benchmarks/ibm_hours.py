"""The benchmark predicts the hours of IBM's trainings from one row of each kind.

The papers train a BLSTM on 2,000 h of Switchboard for 16 epochs. One V100 alone, with
two sizes of its batch, gives the line of a step's time on the P9 machines. Each kind of
training has one factor on that line, from the row of 64 GPUs. The other rows are
simulated with the product's algorithms, in time alone.

    python benchmarks/ibm_hours.py          # three minutes; one core
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from report import write_report
from torch.optim import SGD

from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from espnet_distopt.simulation.cluster_file import StepTime, read_cluster
from espnet_distopt.simulation.network import Network
from espnet_distopt.simulation.study.problem import DIMENSION, StandIn, without_steps

SAMPLES = 16 * 2000 * 3600 * 100 / 21
"""Sequences of 21 frames in 16 epochs of 2,000 h, at 100 frames a second."""

STEPS = 16
SPREAD = 0.1
"""The spread of a step's time, which no paper gives; it is that of hierarchy.py."""

FACTOR = 165e6 / (4 * DIMENSION)
EACH_STEP: dict[str, Any] = {"max_staleness": 1}
"""The papers' learners exchange in every step."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A training that a paper reports.

    Attributes:
        kind: the rows with which it shares its factor.
        learners: the number of GPUs.
        batch: the samples of a learner's step.
        hours: the hours that are reported.
        algorithm: the product's algorithm.
        options: its options.
        cluster: the machines, one of the simulation's own clusters.
        source: the paper.
    """

    kind: str
    learners: int
    batch: int
    hours: float
    algorithm: str = "allreduce"
    options: dict[str, Any] = field(default_factory=dict)
    cluster: str = "ibm_p9"
    source: str = "2110.11199"


def _rows(kind: str, hours: dict[tuple[int, int], float], **of: Any) -> list[Row]:
    return [
        Row(kind=kind, learners=learners, batch=batch, hours=value, **of)
        for (learners, batch), value in hours.items()
    ]


_X86: dict[str, Any] = {"cluster": "ibm_v100", "source": "1907.05701"}
_HRING: dict[str, Any] = {"algorithm": "hadpsgd", "options": {"per_node": 8}}
ROWS = [
    *_rows("one GPU, P9", {(1, 128): 121.96, (1, 256): 99.00, (1, 512): 82.06}),
    *_rows(
        "delay by one, P9",
        {(64, 128): 2.28, (16, 512): 5.88, (32, 256): 3.60}
        | {(96, 85): 2.10, (128, 64): 1.98},
        algorithm="d1d_model",
    ),
    *_rows(
        "ring by MPI, P9",
        {(64, 128): 5.08, (32, 256): 8.84, (16, 512): 15.24},
        algorithm="adpsgd",
        options={"topology": "ring", **EACH_STEP},
    ),
    *_rows(
        "ring by MPI, P9",
        {(64, 128): 5.00, (32, 256): 8.79, (16, 512): 15.19},
        algorithm="adpsgd",
        options={"topology": "randomized_ring", **EACH_STEP},
    ),
    *_rows(
        "x86",
        {(64, 128): 5.2, (32, 128): 9.9, (16, 128): 20.0},
        **_HRING,
        cluster="ibm_v100",
        source="2002.10502",
    ),
    *_rows("x86", {(32, 80): 16 * 0.75}, **_X86),
    *_rows("x86", {(32, 80): 16 * 0.71}, **_X86, **_HRING),
    *_rows("x86", {(32, 80): 16 * 0.83}, **_X86, algorithm="adpsgd", options=EACH_STEP),
    *_rows("x86", {(1, 128): 203.0}, cluster="ibm_v100", source="2002.10502"),
]
LINE = ROWS[0], ROWS[2]
"""The rows that give the time of a step on one GPU."""


def hours(
    row: Row, step: StepTime, network: Network | None = None, steps: int = STEPS
) -> float:
    """Return the simulated hours of a training.

    Args:
        row: the training.
        step: how long a learner computes.
        network: the links between learners; None means those of the row's cluster.
        steps: the number of steps that are simulated.
    """
    scale = SAMPLES / (row.learners * row.batch) / 3600
    if row.learners == 1:
        return step.of(row.batch) * scale
    kind, replicas = without_steps(SGD), []
    for rank in range(row.learners):
        model = StandIn()
        parts = model, kind(model.parameters(), lr=0.1), None, row.algorithm
        replicas.append(
            VirtualLearner(*parts, rank, row.learners, FACTOR, **row.options)
        )
    links = network or read_cluster(row.cluster).network
    compute = Compute(seconds=step.of(row.batch), spread=SPREAD)
    simulation = Simulation(replicas, compute, links.for_larger_messages(FACTOR))
    simulation.start()
    began = simulation.seconds
    simulation.epoch(steps)
    last = {line.rank: line.seconds for line in simulation.record}
    return (fmean(last.values()) - began) / steps * scale


def line() -> StepTime:
    """Return the time of a step on one GPU of the P9 machines, by `LINE`."""
    small, large = LINE
    seconds = [row.hours * 3600 * row.batch / SAMPLES for row in LINE]
    sample = (seconds[1] - seconds[0]) / (large.batch - small.batch)
    return StepTime(fixed=seconds[0] - sample * small.batch, sample=sample)


def factor(row: Row, step: StepTime) -> float:
    """Return the factor on a step's time with which a training takes its hours."""

    def of(factor: float) -> float:
        return hours(row, scaled(step, factor))

    return where(of, row.hours, 8.0)


def scaled(step: StepTime, factor: float) -> StepTime:
    """Return a step that takes `factor` times as long."""
    return StepTime(fixed=factor * step.fixed, sample=factor * step.sample)


def where(function: Callable[[float], float], value: float, high: float) -> float:
    """Return the x in [0, `high`] at which a growing function has a value."""
    low = 0.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return (low + high) / 2


def main() -> None:
    """Calibrate, predict, and write the table to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    step = line()
    factors = {ROWS[0].kind: 1.0}
    table = [
        "| kind | algorithm | learners | batch | published | predicted | error |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
    ]
    data = list[dict[str, Any]]()
    errors = list[float]()
    for row in ROWS:
        calibrated = row in LINE or row.kind not in factors
        if row.kind not in factors:
            factors[row.kind] = factor(row, step)
        found = hours(row, scaled(step, factors[row.kind]))
        error = found / row.hours - 1
        name = row.algorithm if row.learners > 1 else ""
        topology = row.options.get("topology", "")
        table.append(
            f"| {row.kind} | {name}{', ' if topology else ''}{topology} "
            f"| {row.learners} | {row.batch} | {row.hours:.4g} h | "
            + ("calibrated | |" if calibrated else f"{found:.3g} h | {error:+.0%} |")
        )
        print(table[-1], flush=True)
        if not calibrated:
            errors.append(abs(error))
        data.append(
            {"kind": row.kind, "algorithm": row.algorithm, "options": row.options}
            | {"learners": row.learners, "batch": row.batch, "published": row.hours}
            | {"predicted": found, "calibrated": calibrated, "source": row.source}
        )
    found_factors = ", ".join(f"{k} {v:.3g}" for k, v in factors.items())
    caption = (
        f"{len(errors)} rows are predicted; the median error is "
        f"{median(errors):.1%}, the worst {max(errors):.1%}. A step on one GPU takes "
        f"{1e3 * step.fixed:.1f} ms and {1e3 * step.sample:.3f} ms a sequence of 21 "
        f"frames; factors on it: {found_factors}. Simulated: {STEPS} steps in time "
        f"alone (log-normal, sigma {SPREAD}), messages of 165 MB, 16 epochs of 2,000 h."
    )
    write_report(
        "ibm_hours", False, args.out, table, caption, data, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
