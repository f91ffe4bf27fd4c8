"""The benchmark simulates how much one slow learner of 16 slows every algorithm.

All learners make equally many steps on a quadratic; one of them is 1, 2, 10 or 100
times slower. The throughput is the steps per virtual second of all learners, between
the slowest one's first step and the fastest one's last. So it is the pace at which
learners would take batches from a work queue; the start and the end of an epoch do not
count. It is divided by the throughput without a straggler. The bound is
(n - 1 + 1/s) / n, where only the slow learner's steps are lost. With hadpsgd the whole
node of the slow learner is slow, m learners, so the bound is (n - m + m/s) / n.

    python benchmarks/straggler_sweep.py          # two minutes; one core
"""

import argparse
from pathlib import Path

import torch
from report import write_report
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    Simulation,
    VirtualLearner,
)
from espnet_distopt.simulation.study.quadratic import Quadratic

LEARNERS = 16
SLOWDOWNS = (1, 2, 10, 100)
STEPS = 300
STEP_SECONDS = 0.3
OPTIONS = {"hadpsgd": {"per_node": 4}, "diloco": {"period": 20}}
"""Options whose default makes no sense here: hadpsgd needs nodes, and diloco's blocks
are longer than the run."""


def throughput(name: str, slowdown: float, steps: int) -> float:
    """Return the steps per virtual second of all learners.

    They count from the slowest learner's first step to the fastest one's last.

    Args:
        name: the name of the algorithm.
        slowdown: how many times slower the last learner is than the others.
        steps: the number of steps of each learner.
    """
    problem = Quadratic(dimension=64)
    learners = []
    for rank in range(LEARNERS):
        model, gradient = problem.replica(rank, LEARNERS)
        make = Adam if name == "bmuf_adam" else SGD
        optimizer = make(model.parameters(), lr=0.01)
        options = OPTIONS.get(name, {})
        learners.append(
            VirtualLearner(model, optimizer, gradient, name, rank, LEARNERS, **options)
        )
    compute = Compute(seconds=STEP_SECONDS, slowdown={LEARNERS - 1: slowdown})
    network = Network(between=Link(latency=0, bandwidth=float("inf")), per_node=1)
    simulation = Simulation(learners, compute, network)
    simulation.start()
    simulation.epoch(steps)
    record = simulation.record
    begin = max(step.seconds for step in record if step.step == 1)
    end = min(step.seconds for step in record if step.step == steps)
    return sum(begin < step.seconds <= end for step in record) / (end - begin)


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="make few steps")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    slowdowns, steps = (SLOWDOWNS[:3], 50) if args.quick else (SLOWDOWNS, STEPS)
    torch.set_num_threads(1)
    bound = [(LEARNERS - 1 + 1 / s) / LEARNERS for s in slowdowns]
    rows = {}
    for name in ALGORITHMS:
        made = [throughput(name, s, steps) for s in slowdowns]
        rows[name] = [figure / made[0] for figure in made]
        print(name, *(f"{ratio:.3f}" for ratio in rows[name]), flush=True)
    lines = [
        "| algorithm | " + " | ".join(f"{s} times slower" for s in slowdowns) + " |",
        "| :-- |" + " --: |" * len(slowdowns),
    ]
    for name, ratios in [*rows.items(), ("bound", bound)]:
        lines.append(f"| {name} | " + " | ".join(f"{r:.3f}" for r in ratios) + " |")
    options = ", ".join(
        f"{name} with {key} {value}"
        for name, conf in OPTIONS.items()
        for key, value in conf.items()
    )
    caption = (
        f"Simulated: {LEARNERS} virtual learners make {steps} steps each; one of them "
        "is slower. The figures are steps per virtual second of all learners, between "
        "the slowest one's first step and the fastest one's last, relative to no "
        "straggler. The bound is (n - 1 + 1/s) / n; for hadpsgd, whose slow node has 4 "
        f"learners, it is (n - 4 + 4/s) / n. A step takes {STEP_SECONDS} s and a "
        f"message takes no time. Options have their defaults, but {options}."
    )
    data = {"slowdowns": slowdowns, "relative": rows, "bound": bound, "steps": steps}
    write_report(
        "straggler_sweep",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=[0],
        repeats=1,
    )


if __name__ == "__main__":
    main()
