"""The benchmark compares how close topologies keep learners, at equal bytes.

AD-PSGD and D-PSGD descend a noisy quadratic with 4, 16 and 64 simulated learners, and
with numbers that are no power of two. An exchange of AD-PSGD sends one model, a step of
D-PSGD up to four of them. The consensus distance is that at the end of a step, averaged
over the second half of the steps. The learning rate is so small that curvature plays no
part, and beside what was measured stands what the mixing matrices say
(`convergence.mixing`).

    python benchmarks/topologies.py          # ten minutes; one core
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from convergence import mixing
from report import write_report
from torch.optim import SGD

from espnet_distopt.algorithms.gossip import continuous_momentum
from espnet_distopt.core.mixing import Topology, mixing_matrix, rounds_of
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
ANY_SIZES = (6, 25)
"""Numbers of learners that are no power of two; 6 = 2 x 3, and 25 = 16 + 8 + 1."""
NODE = 4
"""Learners of a node on the alternating ring."""


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        algorithm: the algorithm.
        options: its options.
        extra: the share of the paper's alpha~ that continuous momentum takes.
        remark: what the row says beside the topology.
    """

    algorithm: str
    options: dict[str, Any]
    extra: float = continuous_momentum.EXTRA
    remark: str = ""

    @property
    def name(self) -> str:
        """What the table calls the topology."""
        return f"{self.options['topology']}{self.remark}"


def gossip(topology: str) -> Method:
    """Return AD-PSGD on a topology."""
    return Method("adpsgd", {"topology": topology})


def synchronous(topology: str) -> Method:
    """Return D-PSGD on a topology."""
    return Method("dpsgd", {"topology": topology})


DRAWN = {"topology": "ring", "continuous_momentum": True}
METHODS = [
    gossip("ring"),
    Method("adpsgd", DRAWN, remark=", continuous momentum"),
    Method("adpsgd", DRAWN, 1.0, ", continuous momentum, all of the paper's alpha~"),
    gossip("random"),
    gossip("randomized_ring"),
    gossip("hypercube"),
    synchronous("ring"),
    synchronous("randomized_ring"),
    synchronous("hypercube"),
    synchronous("base3"),
    synchronous("base5"),
    Method(
        "dpsgd",
        {"topology": "alternating", "per_node": NODE},
        remark=f", nodes of {NODE}",
    ),
    synchronous("complete"),
]
ANY_METHODS = [
    gossip("ring"),
    gossip("random"),
    synchronous("ring"),
    synchronous("randomized_ring"),
    synchronous("base2"),
    synchronous("base3"),
    synchronous("base5"),
]


def measure(method: Method, size: int, steps: int) -> list[float]:
    """Return the mean square distance over `UNIT`, and the models sent in a step.

    Args:
        method: the algorithm and its options.
        size: the number of learners.
        steps: the number of steps of each learner.
    """
    problem = Quadratic(dimension=DIMENSION, batch_size=1)
    name, options, learners = method.algorithm, method.options, []
    continuous_momentum.EXTRA = method.extra
    continuous_momentum.strength.cache_clear()
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
    pairs, ring = 1 / 2 - 1 / 2 / (size - 1), 1 / 3 - 2 / 3 / (size - 1)
    found = {}
    if size % 2 == 0:
        turns = mixing.alternating_pairs(size)
        found["pairs on a ring, at random"] = mixing.of_random_edges(size, steps)
        found["pairs on a ring, in turn"] = mixing.of_rounds(turns, steps)
        every = "pairs of all learners, at random"
        found[every] = mixing.of_factor(size, pairs, steps)
    found["base-2 graph, or hypercube"] = of_rounds("base2", size, steps)
    least = "least of all that exchange once a step"
    found[least] = mixing.least_of_pairs(size, steps)
    found["ring with weights of a third"] = of_rounds("ring", size, steps)
    found["randomized ring"] = mixing.of_factor(size, ring, steps)
    found["base-3 graph"] = of_rounds("base3", size, steps)
    found["base-5 graph"] = of_rounds("base5", size, steps)
    if size & (size - 1) == 0:
        nodes = f"alternating ring, nodes of {NODE}"
        found[nodes] = of_rounds("alternating", size, steps)
    found["complete"] = mixing.of_factor(size, 0.0, steps)
    return found


def of_rounds(topology: Topology, size: int, steps: int) -> mixing.Shares:
    """Return the shares of a topology of D-PSGD, whose rounds take turns."""
    rounds = [
        mixing_matrix(topology, size, k, per_node=NODE)
        for k in range(rounds_of(topology, size, NODE))
    ]
    return mixing.of_rounds(rounds, steps)


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
    for name in dict.fromkeys(name for size in sizes for name in columns[size]):
        cells = []
        for size in sizes:
            if name not in columns[size]:
                cells.append("-")
                continue
            sums = columns[size][name].cumsum()
            early = float(sums[steps // 2 : steps].mean())
            cells.append(f"{sums[-1]:.2f} ({early:.2f})")
            data.append({"name": name, "learners": size})
            data[-1] |= {"stationary": float(sums[-1]), "early": early}
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines, data


def table(
    methods: list[Method], sizes: tuple[int, ...], steps: int
) -> tuple[list[str], list[Any]]:
    """Return the rows of a table of measured distances, and its figures.

    Args:
        methods: its rows; the first one of each algorithm is a ring.
        sizes: numbers of learners.
        steps: the number of steps of each learner.
    """
    lines = [
        "| algorithm | topology | " + " | ".join(f"{n} learners" for n in sizes) + " |",
        "| :-- | :-- |" + " --: |" * len(sizes),
    ]
    data, rings = [], dict[tuple[str, int], float]()
    for method in methods:
        cells = []
        for size in sizes:
            square, models = measure(method, size, steps)
            ring = rings.setdefault((method.algorithm, size), square)
            cells.append(
                f"{square:.2f} (ring / {ring / square:.1f}), {models:.2f} models"
            )
            data.append({"name": method.algorithm, **method.options})
            data[-1] |= {"topology": method.name, "learners": size}
            data[-1] |= {"mean_square_distance": square, "models_a_step": models}
        lines.append(f"| {method.algorithm} | {method.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines, data


def main() -> None:
    """Simulate, print the tables and write them to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few learners and steps")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    sizes, steps = (SIZES[:2], 20) if args.quick else (SIZES, STEPS)
    others = ANY_SIZES[:1] if args.quick else ANY_SIZES
    torch.set_num_threads(1)
    lines, data = table(METHODS, sizes, steps)
    for more in (
        theory(sizes if args.quick else THEORY_SIZES, steps),
        table(ANY_METHODS, others, steps),
        theory(others, steps),
    ):
        lines += ["", *more[0]]
        data += more[1]
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
    write_report(
        "topologies", args.quick, args.out, lines, caption, data, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
