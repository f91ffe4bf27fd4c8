"""The benchmark compares how close topologies keep learners, at equal bytes.

AD-PSGD and D-PSGD descend a noisy quadratic with 4, 16 and 64 simulated learners. An
exchange of AD-PSGD sends one model, a step of D-PSGD one or two of them. The consensus
distance is that at the end of a step, averaged over the second half of the steps. The
learning rate is so small that curvature plays no part, and beside what was measured
stands what the mixing matrices say (`convergence.mixing`).

    python benchmarks/topologies.py          # three minutes; one core
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from convergence import mixing
from report import write_report
from torch.optim import SGD

from espnet_distopt.core.topology import mixing_matrix
from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    Simulation,
    VirtualLearner,
)
from espnet_distopt.simulation.study.quadratic import Quadratic

SIZES = (4, 16, 64)
STEPS = 400
SPREAD = 0.1
LR = 1e-4
DIMENSION = 64
UNIT = LR**2 * DIMENSION
"""The mean square length of the noise of one update: that of a gradient's element has
the standard deviation 1."""
STATIONARY = 20_000
"""Steps after which the slowest of the computed distances has long settled."""
THEORY_SIZES = (4, 16, 64, 128)
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("adpsgd", {"topology": "ring"}),
    ("adpsgd", {"topology": "random"}),
    ("adpsgd", {"topology": "hypercube"}),
    ("dpsgd", {"topology": "ring"}),
    ("dpsgd", {"topology": "randomized_ring"}),
    ("dpsgd", {"topology": "hypercube"}),
    ("dpsgd", {"topology": "complete"}),
]


def measure(name: str, options: dict[str, Any], size: int, steps: int) -> list[float]:
    """Return the mean square distance over `UNIT`, and the models sent in a step.

    Args:
        name: the algorithm.
        options: its options.
        size: the number of learners.
        steps: the number of steps of each learner.
    """
    problem = Quadratic(dimension=DIMENSION, batch_size=1)
    learners = []
    for rank in range(size):
        model, gradient = problem.replica(rank, size)
        optimizer = SGD(model.parameters(), lr=LR)
        learners.append(
            VirtualLearner(model, optimizer, gradient, name, rank, size, **options)
        )
    network = Network(between=Link(latency=1e-3, bandwidth=1e9))
    simulation = Simulation(learners, Compute(seconds=0.3, spread=SPREAD), network)
    simulation.start()
    for virtual in learners:
        virtual.metrics()
    distances = []

    def look(running: Simulation) -> None:
        made = len(running.record)
        if made > len(distances) * size and made > 0:
            params = torch.stack([v.learner.params for v in running.learners])
            apart = (params - params.mean(0)).square().sum(1).mean()
            distances.append(float(apart))

    simulation.check = look
    simulation.epoch(steps)
    sent = fmean(virtual.metrics()["bytes"] for virtual in learners)
    models = sent / learners[0].learner.params.nbytes / steps
    return [fmean(distances[len(distances) // 2 :]) / UNIT, models]


def computed(size: int, steps: int) -> dict[str, mixing.Shares]:
    """Return a name -> the shares of the noise that mixing matrices leave.

    Args:
        size: the number of learners.
        steps: the number of shares.
    """
    cube = [mixing_matrix("hypercube", size, k) for k in range(size.bit_length() - 1)]
    pairs, ring = 1 / 2 - 1 / 2 / (size - 1), 1 / 3 - 2 / 3 / (size - 1)
    return {
        "pairs on a ring, at random": mixing.of_random_edges(size, steps),
        "pairs on a ring, in turn": mixing.of_rounds(
            mixing.alternating_pairs(size), steps
        ),
        "pairs of all learners, at random": mixing.of_factor(size, pairs, steps),
        "hypercube": mixing.of_rounds(cube, steps),
        "least of all that exchange once a step": mixing.least_of_pairs(size, steps),
        "ring with weights of a third": mixing.of_rounds(
            [mixing_matrix("ring", size)], steps
        ),
        "randomized ring": mixing.of_factor(size, ring, steps),
        "complete": mixing.of_factor(size, 0.0, steps),
    }


def theory(sizes: tuple[int, ...], steps: int) -> tuple[list[str], list[Any]]:
    """Return the rows of a table of computed distances, and its figures.

    Args:
        sizes: numbers of learners.
        steps: the number of steps of the measured runs.
    """
    columns = {size: computed(size, STATIONARY) for size in sizes}
    lines = [
        f"| computed, stationary (after {steps // 2} to {steps} steps) | "
        + " | ".join(f"{n} learners" for n in sizes)
        + " |",
        "| :-- |" + " --: |" * len(sizes),
    ]
    data = []
    for name in columns[sizes[0]]:
        cells = []
        for size in sizes:
            sums = columns[size][name].cumsum()
            early = float(sums[steps // 2 : steps].mean())
            cells.append(f"{sums[-1]:.2f} ({early:.2f})")
            data.append({"name": name, "learners": size})
            data[-1] |= {"stationary": float(sums[-1]), "early": early}
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines, data


def main() -> None:
    """Simulate, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few learners and steps")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    sizes, steps = (SIZES[:2], 20) if args.quick else (SIZES, STEPS)
    torch.set_num_threads(1)
    lines = [
        "| algorithm | topology | " + " | ".join(f"{n} learners" for n in sizes) + " |",
        "| :-- | :-- |" + " --: |" * len(sizes),
    ]
    data, rings = [], dict[tuple[str, int], float]()
    for name, options in METHODS:
        cells = []
        for size in sizes:
            square, models = measure(name, options, size, steps)
            ring = rings.setdefault((name, size), square)
            cells.append(
                f"{square:.2f} (ring / {ring / square:.1f}), {models:.2f} models"
            )
            data.append({"name": name, **options, "learners": size})
            data[-1] |= {"mean_square_distance": square, "models_a_step": models}
        lines.append(f"| {name} | {options['topology']} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    rows, figures = theory(sizes if args.quick else THEORY_SIZES, steps)
    lines += ["", *rows]
    caption = (
        "Measured in a simulation: the mean over the learners of the square distance "
        "from their mean, averaged over the second half of the steps, in units of the "
        "mean square length of the noise of one update; in brackets how many times it "
        "is below the ring's; and the models that a learner sends in a step. Noisy "
        f"quadratic of {DIMENSION} dimensions, batches of one sample, learning rate "
        f"{LR:g}; {steps} steps of 0.3 s (log-normal, sigma {SPREAD}); links of 1 ms "
        "and 1 GB/s. Computed: the same from the mixing matrices, where each learner "
        "makes one step between two averages, at last and, in brackets, in the steps "
        "that were measured."
    )
    data += figures
    write_report(
        "topologies", args.quick, args.out, lines, caption, data, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
