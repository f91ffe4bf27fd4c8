"""The benchmark predicts the hours that IBM's papers report, from one or two of them.

The papers train on 2,000 h of Switchboard for 16 epochs. One row alone gives the time
of a step if that grows with the batch; two give a step with a fixed part. The other
rows are predicted by a simulation of H-ADPSGD on nodes of eight V100 (hierarchy.py), in
time alone. docs/prediction.md says what the papers leave open.

    python benchmarks/ibm_hours.py          # two minutes; one core
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from report import write_report
from torch.optim import SGD

from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from espnet_distopt.simulation.cluster_file import StepTime, read_cluster
from espnet_distopt.simulation.study.time_only import DIMENSION, StandIn, without_steps

SAMPLES = 16 * 2000 * 3600 * 100 / 21
"""Sequences of 21 frames in 16 epochs of 2,000 h, at 100 frames a second."""

STEPS = 24
SPREAD = 0.1
MODEL_BYTES = 165e6
FACTOR = MODEL_BYTES / (4 * DIMENSION)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A training that a paper reports.

    Attributes:
        name: how the table calls it.
        learners: the number of GPUs.
        batch: the samples of a learner's step.
        hours: the hours that are reported.
    """

    name: str
    learners: int
    batch: int
    hours: float


ONE = Row(name="1 V100", learners=1, batch=256, hours=180)
"""The papers say "over a week" and 192 h."""
HALF = Row(name="32 V100", learners=32, batch=80, hours=11.5)
WHOLE = Row(name="64 V100", learners=64, batch=128, hours=5.2)
RATIO = "64 to 128 V100, P9"
PUBLISHED_RATIO = 2.28 / 1.98


def hours(learners: int, batch: int, step: StepTime) -> float:
    """Return the simulated hours of a training by H-ADPSGD on nodes of eight.

    Args:
        learners: the number of learners; one alone trains by all-reduce.
        batch: the samples of a learner's step.
        step: how long a learner computes.
    """
    network = read_cluster("ibm_v100").network
    name, options = "allreduce", {}
    if learners > 1:
        name, options = "hadpsgd", {"per_node": network.per_node}
    kind = without_steps(SGD)
    replicas = []
    for rank in range(learners):
        model = StandIn()
        optimizer = kind(model.parameters(), lr=0.1)
        parts = model, optimizer, None, name, rank, learners, FACTOR
        replicas.append(VirtualLearner(*parts, **options))
    simulation = Simulation(
        replicas,
        Compute(seconds=step.of(batch), spread=SPREAD if learners > 1 else 0.0),
        network.for_larger_messages(FACTOR),
    )
    simulation.start()
    began = simulation.seconds
    simulation.epoch(STEPS)
    last = {line.rank: line.seconds for line in simulation.record}
    each = (fmean(last.values()) - began) / STEPS
    return each * SAMPLES / (learners * batch) / 3600


def where(function: Callable[[float], float], value: float, high: float) -> float:
    """Return the x in [0, `high`] at which a growing function has a value."""
    low = 0.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return (low + high) / 2


def growing() -> StepTime:
    """Return the time of a step that grows with its batch, by the row of 64 V100."""
    return StepTime(
        sample=where(lambda s: _whole(StepTime(sample=s)), WHOLE.hours, 5e-3)
    )


def with_fixed_part() -> StepTime:
    """Return the time of a step by the rows of 64 V100 and of one."""
    alone = ONE.hours * 3600 / SAMPLES  # The seconds of a sample, in batches of 256.

    def step(fixed: float) -> StepTime:
        return StepTime(fixed=fixed, sample=alone - fixed / ONE.batch)

    return step(
        where(lambda fixed: _whole(step(fixed)), WHOLE.hours, alone * ONE.batch)
    )


def _whole(step: StepTime) -> float:
    return hours(WHOLE.learners, WHOLE.batch, step)


def ratio(step: StepTime) -> float:
    """Return how many times faster 128 GPUs are than 64, with 8,192 samples a step."""
    return hours(64, 128, step) / hours(128, 64, step)


def main() -> None:
    """Calibrate, predict, and write the table to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    lines = [
        "| calibrated on | step of 128 samples | row | published | predicted | error |",
        "| :-- | --: | :-- | --: | --: | --: |",
    ]
    data = []
    for name, step, others in (
        (WHOLE.name, growing(), (HALF, ONE)),
        (f"{WHOLE.name}, {ONE.name}", with_fixed_part(), (HALF,)),
    ):
        found = [
            (row.name, row.hours, hours(row.learners, row.batch, step), " h")
            for row in others
        ]
        found.append((RATIO, PUBLISHED_RATIO, ratio(step), " times"))
        for label, published, predicted, unit in found:
            error = predicted / published - 1
            lines.append(
                f"| {name} | {1e3 * step.fixed:.0f} + {1e3 * step.sample * 128:.0f} ms "
                f"| {label} | {published:.3g}{unit} | {predicted:.3g}{unit} "
                f"| {100 * error:+.0f} % |"
            )
            print(lines[-1], flush=True)
            data.append(
                {"calibrated_on": name, "fixed": step.fixed, "sample": step.sample}
                | {"row": label, "published": published, "predicted": predicted}
            )
    caption = (
        "Simulated: H-ADPSGD on nodes of eight learners with a card of 100 Gbit/s, "
        f"{STEPS} steps in time alone (log-normal, sigma {SPREAD}), messages of "
        f"{MODEL_BYTES / 1e6:g} MB, 16 epochs of 2,000 h. Batches are 256 samples of "
        "one GPU, 2,560 of 32 and 8,192 of 64. That of the P9 rows was not found: both "
        "are taken to have 8,192."
    )
    write_report(
        "ibm_hours", False, args.out, lines, caption, data, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
