"""How every algorithm grows from 2 to 64 learners: simulated, on a quadratic.

The time of a step of each learner, and the bytes that it sends in it, under one model
of links and computing.

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
"""Large: a few numbers that an algorithm sends beside its parameters are made as much
larger as these are, and must hardly count."""
MODEL_BYTES = 140e6
"""What messages cost: those of 35 million parameters in float32."""
INSIDE = Link(latency=1e-5, bandwidth=2e10)
BETWEEN = Link(latency=1e-4, bandwidth=1.25e9)
OPTIONS: dict[str, dict[str, Any]] = {"diloco": {"period": 32}}
"""Where the default makes no sense here: a block longer than the run."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Of a step, the means over the learners: virtual seconds, and bytes sent."""

    seconds: float
    bytes: float


def measure(name: str, size: int, steps: int) -> Growth:
    """Simulate an epoch of `size` learners; its start counts nowhere."""
    problem = Quadratic(dimension=DIMENSION)
    options = dict(OPTIONS.get(name, {}))
    if name == "hadpsgd":
        options["per_node"] = min(NODE, size // 2)
    learners = []
    for rank in range(size):
        model, gradient = problem.replica(rank, size)
        make = Adam if name == "bmuf_adam" else SGD
        optimizer = make(model.parameters(), lr=0.01)
        learners.append(
            VirtualLearner(model, optimizer, gradient, name, rank, size, **options)
        )
    factor = MODEL_BYTES / learners[0].learner.params.nbytes
    network = Network(
        inside=_for_larger_messages(INSIDE, factor),
        between=_for_larger_messages(BETWEEN, factor),
        per_node=NODE,
    )
    compute = Compute(seconds=STEP_SECONDS, spread=SPREAD)
    simulation = Simulation(learners, compute, network)
    simulation.start()
    began = simulation.seconds
    for virtual in learners:
        virtual.metrics()
    simulation.epoch(steps)
    ends = [line.seconds for line in simulation.record if line.step == steps]
    sent = fmean(virtual.metrics()["bytes"] for virtual in learners)
    return Growth(seconds=(fmean(ends) - began) / steps, bytes=sent * factor / steps)


def _for_larger_messages(link: Link, factor: float) -> Link:
    """Return a link on which messages take as long as ones `factor` times larger."""
    return Link(latency=link.latency, bandwidth=link.bandwidth / factor)


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
        "Simulated: virtual seconds a step and bytes sent a step by each learner, "
        f"means over learners and an epoch of {steps} steps (bytes: and its end). A "
        f"step computes for {STEP_SECONDS} s (log-normal, sigma {SPREAD}). Messages "
        "cost as "
        f"those of a model of {MODEL_BYTES / 1e6:.0f} MB. Nodes of {NODE} learners; "
        f"links inside of {INSIDE.bandwidth / 1e9:g} GB/s, between of "
        f"{BETWEEN.bandwidth / 1e9:g} GB/s and {BETWEEN.latency * 1e6:g} us, each as "
        "if nobody else used it; collectives are rings, but adasum's all-to-all and "
        "all-gather messages between all pairs. Defaults, but hadpsgd with "
        f"per_node {NODE} (at most half of the learners), diloco with period "
        f"{OPTIONS['diloco']['period']}."
    )
    write_report("growth", args.quick, args.out, lines, caption, data)


if __name__ == "__main__":
    main()
