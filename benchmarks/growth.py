"""The benchmark simulates every algorithm with 2 to 64 learners, on a quadratic.

It reports the time of a learner's step and the bytes that the learner sends in it. All
algorithms have the same links, and steps take equally long to compute.

    python benchmarks/growth.py          # five minutes; one core
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

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

LEARNERS = (2, 4, 8, 16, 32, 64)
STEPS = 32
STEP_SECONDS = 0.3
SPREAD = 0.1
NODE = 4
DIMENSION = 32_768
"""The number of parameters that are really trained. Messages count as those of a model
of MODEL_BYTES, so the few numbers that an algorithm sends beside its parameters are
scaled up with them. The dimension is so large that these numbers hardly count."""
MODEL_BYTES = 140e6
"""The size of the model by which messages cost time: 35 million float32 parameters."""
INSIDE = Link(latency=1e-5, bandwidth=2e10)
BETWEEN = Link(latency=1e-4, bandwidth=1.25e9)
OPTIONS: dict[str, dict[str, Any]] = {"diloco": {"period": 32}}
"""Options whose default makes no sense here: diloco's blocks are longer than a run."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The figures of a step, averaged over the learners.

    Attributes:
        seconds: the virtual seconds of a step.
        bytes: the bytes that a learner sends in a step.
    """

    seconds: float
    bytes: float


def measure(name: str, size: int, steps: int) -> Growth:
    """Simulate an epoch, without counting what the learners send at the start.

    Args:
        name: the name of the algorithm.
        size: the number of learners.
        steps: the number of steps of each learner.
    """
    problem = Quadratic(dimension=DIMENSION)
    options = dict(OPTIONS.get(name, {}))
    if name == "hadpsgd":
        options["per_node"] = min(NODE, size // 2)
    learners = []
    factor = MODEL_BYTES / (8 * DIMENSION)
    for rank in range(size):
        model, gradient = problem.replica(rank, size)
        make = Adam if name == "bmuf_adam" else SGD
        optimizer = make(model.parameters(), lr=0.01)
        learners.append(
            VirtualLearner(
                model, optimizer, gradient, name, rank, size, factor, **options
            )
        )
    network = Network(inside=INSIDE, between=BETWEEN, per_node=NODE)
    compute = Compute(seconds=STEP_SECONDS, spread=SPREAD)
    simulation = Simulation(learners, compute, network.for_larger_messages(factor))
    simulation.start()
    began = simulation.seconds
    for virtual in learners:
        virtual.metrics()
    simulation.epoch(steps)
    ends = [line.seconds for line in simulation.record if line.step == steps]
    sent = fmean(virtual.metrics()["bytes"] for virtual in learners)
    return Growth(seconds=(fmean(ends) - began) / steps, bytes=sent * factor / steps)


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few learners and steps")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    sizes, steps = (LEARNERS[:2], 8) if args.quick else (LEARNERS, STEPS)
    torch.set_num_threads(1)
    lines = [
        "| algorithm | " + " | ".join(f"{n} learners" for n in sizes) + " |",
        "| :-- |" + " --: |" * len(sizes),
    ]
    data: dict[str, dict[int, Any]] = {}
    for name in ALGORITHMS:
        grown = {n: measure(name, n, steps) for n in sizes}
        cells = [f"{g.seconds:.3f} s, {g.bytes / 1e6:.0f} MB" for g in grown.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        data[name] = {
            n: {"seconds": g.seconds, "bytes": g.bytes} for n, g in grown.items()
        }
        print(lines[-1], flush=True)
    caption = (
        "Simulated: a cell has the virtual seconds per step and the bytes that a "
        f"learner sends per step, averaged over the learners and an epoch of {steps} "
        "steps (the bytes include those at the epoch's end). A step computes for "
        f"{STEP_SECONDS} s (log-normal, sigma {SPREAD}). Messages cost as much as "
        f"those of a model of {MODEL_BYTES / 1e6:.0f} MB. A node has {NODE} learners; "
        f"links have {INSIDE.bandwidth / 1e9:g} GB/s inside a node, and "
        f"{BETWEEN.bandwidth / 1e9:g} GB/s and {BETWEEN.latency * 1e6:g} us between "
        "nodes; no link is shared. Collectives are rings, but adasum's all-to-all and "
        "all-gather are messages between all pairs. Options have their defaults, but "
        f"hadpsgd has per_node {NODE} (at most half of the learners) and diloco has "
        f"period {OPTIONS['diloco']['period']}."
    )
    write_report(
        "growth",
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
