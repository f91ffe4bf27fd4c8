"""The benchmark simulates every algorithm with 8 to 1,024 learners, in time alone.

It reports the time of a learner's step and the bytes that the learner sends in it, and
draws the speed-ups of H-ADPSGD and of BMUF-Adam. The cluster is that of the H-ADPSGD
paper (espnet_distopt/simulation/clusters/ibm_v100.yaml): eight learners of a node share
its network card.

    python benchmarks/growth.py          # ten minutes; one core
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from report import folder, write_report
from torch.optim import SGD, Adam

from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from espnet_distopt.simulation.cluster_file import read_cluster
from espnet_distopt.simulation.study.problem import DIMENSION, TimeOnly

LEARNERS = (8, 16, 64, 256, 1024)
STEPS = 24
SPREAD = 0.1
BATCH = 128
NODE = 8
MODEL_BYTES = 165e6
FACTOR = MODEL_BYTES / (4 * DIMENSION)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "allreduce": ("allreduce", {}),
    "adpsgd": ("adpsgd", {}),
    "hadpsgd, nodes of 8": ("hadpsgd", {"per_node": NODE}),
    "bmuf_adam, period 8": ("bmuf_adam", {"period": 8}),
    "bmuf_adam, period 8, delay 4": ("bmuf_adam", {"period": 8, "delay": 4}),
    "local_sgd, period 8": ("local_sgd", {"period": 8}),
    "local_sgd, period 8, keep 0.02": ("local_sgd", {"period": 8, "keep": 0.02}),
    "d1d_model": ("d1d_model", {}),
}
"""The name of a row -> its algorithm and options. SlowMo, BMUF and DiLoCo average as
Local SGD does, and so take as long with the same period; D1D sends as much in both of
its readings. Adasum and D-PSGD are left out: with so many learners their messages, each
of which is followed by itself, take hours to simulate."""
PICTURES = {
    "hadpsgd": ("hadpsgd, nodes of 8", "adpsgd", "allreduce"),
    "bmuf_adam": ("bmuf_adam, period 8, delay 4", "bmuf_adam, period 8", "allreduce"),
}
"""What the name of a picture ends with -> the rows that it shows."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The figures of a step, averaged over the learners.

    Attributes:
        seconds: the virtual seconds of a step.
        bytes: the bytes that a learner sends in a step.
        speedup: by how much the samples of a second are more than those of one learner.
    """

    seconds: float
    bytes: float
    speedup: float


def measure(name: str, options: dict[str, Any], size: int, steps: int) -> Growth:
    """Simulate an epoch, without counting what the learners send at the start.

    Args:
        name: the name of the algorithm.
        options: its options.
        size: the number of learners.
        steps: the number of steps of each learner.
    """
    cluster = read_cluster("ibm_v100")
    assert cluster.step is not None
    alone = cluster.step.of(BATCH)
    if name == "hadpsgd":
        options = {"per_node": min(options["per_node"], size // 2)}
    learners = []
    for rank in range(size):
        model, gradient = TimeOnly().replica(rank, size)
        make = Adam if name == "bmuf_adam" else SGD
        optimizer = make(model.parameters(), lr=0.01)
        learners.append(
            VirtualLearner(
                model, optimizer, gradient, name, rank, size, FACTOR, **options
            )
        )
    network = cluster.network.for_larger_messages(FACTOR)
    simulation = Simulation(learners, Compute(seconds=alone, spread=SPREAD), network)
    simulation.start()
    began = simulation.seconds
    for virtual in learners:
        virtual.metrics()
    simulation.epoch(steps)
    ends = [line.seconds for line in simulation.record if line.step == steps]
    sent = fmean(virtual.metrics()["bytes"] for virtual in learners)
    seconds = (fmean(ends) - began) / steps
    speedup = size * alone / seconds
    return Growth(seconds=seconds, bytes=sent * FACTOR / steps, speedup=speedup)


def draw(path: Path, grown: dict[str, dict[int, Growth]]) -> None:
    """Draw the speed-ups of some rows against the learners, to an SVG file.

    Args:
        path: the path of the file.
        grown: the name of a row -> learners -> figures.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel="learners", ylabel="speed-up over one learner, simulated")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.grid(alpha=0.3)
    sizes = sorted(next(iter(grown.values())))
    axes.plot(sizes, sizes, color="grey", linestyle=":", label="linear")
    for name, row in grown.items():
        axes.plot(sizes, [row[n].speedup for n in sizes], marker="o", label=name)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, draw the pictures and write the table to benchmarks/results/."""
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
    found: dict[str, dict[int, Growth]] = {}
    for row, (name, options) in METHODS.items():
        found[row] = {n: measure(name, options, n, steps) for n in sizes}
        cells = [
            f"{1e3 * g.seconds:.0f} ms, {g.bytes / 1e6:.0f} MB, {g.speedup:.0f}"
            for g in found[row].values()
        ]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    caption = (
        "Simulated, in time alone: a cell has the virtual time of a step, the bytes "
        "that a learner sends in it, averaged over the learners and an epoch of "
        f"{steps} steps (the bytes include those at the epoch's end), and the speed-up "
        "in samples a second over one learner that communicates with nobody. A step "
        f"computes for 0.151 s (log-normal, sigma {SPREAD}); messages are those of a "
        f"model of {MODEL_BYTES / 1e6:g} MB. A node has {NODE} learners, who share a "
        "card of 100 Gbit/s; their links inside have 20 GB/s. Collectives are rings, "
        "but what `keep` sends goes from each learner to each other one. Options have "
        "their defaults, if they are not named."
    )
    data = {
        row: {n: asdict(g) for n, g in sized.items()} for row, sized in found.items()
    }
    path = folder(args.quick, args.out)
    path.mkdir(parents=True, exist_ok=True)
    for name, rows in PICTURES.items():
        draw(path / f"growth_{name}.svg", {row: found[row] for row in rows})
    write_report(
        "growth", args.quick, args.out, lines, caption, data, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
