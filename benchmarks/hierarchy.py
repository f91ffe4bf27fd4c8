"""The benchmark simulates 8 nodes of 8 learners that share a network card in each node.

It compares all-reduce, AD-PSGD over all 64 learners and H-ADPSGD, whose nodes are super
learners, on cards of 100, 50, 25 and 10 Gbit/s. AD-PSGD runs with its defaults, where a
slow card makes exchanges rarer, and with `max_staleness: 1`, where each learner
exchanges in every step, as H-ADPSGD's nodes do. The learners descend a noisy quadratic,
so that the consensus distance is that of the same run as the times. The cluster is that
of the H-ADPSGD paper (arXiv 1907.05701, simulation/clusters/ibm_v100.yaml).

    python benchmarks/hierarchy.py          # three minutes; one core
"""

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from report import write_report
from torch.optim import SGD

from espnet_distopt.simulation import Compute, Network, Simulation, VirtualLearner
from espnet_distopt.simulation.cluster_file import read_cluster
from espnet_distopt.simulation.study.problem import Quadratic

LEARNERS, NODE = 64, 8
BATCH = 128
STEPS = 48
SPREAD = 0.1
MODEL_BYTES = 165e6
DIMENSION = 1000
FACTOR = MODEL_BYTES / (8 * DIMENSION)
GIGABITS = (100, 50, 25, 10)
METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("allreduce", "allreduce", {}),
    ("adpsgd", "adpsgd", {}),
    ("adpsgd, max_staleness 1", "adpsgd", {"max_staleness": 1}),
    ("hadpsgd", "hadpsgd", {"per_node": NODE}),
]
PUBLISHED_STEPS = round(16 * 2000 * 3600 * 100 / 21 / (LEARNERS * BATCH))
"""Steps of 16 epochs of 2,000 h, at 100 frames a second, of sequences of 21 frames."""
PUBLISHED_HOURS = 5.2
"""What the paper reports for H-ADPSGD."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one run.

    Attributes:
        seconds: the virtual seconds of a step.
        exchanges: the exchanges that a learner which exchanges has in a step.
        staleness: the staleness of the stalest correction, in steps.
        distance: the root mean square distance of the learners from their mean, each
            of them after its last step.
    """

    seconds: float
    exchanges: float
    staleness: float
    distance: float


def run(name: str, options: dict[str, Any], network: Network, steps: int) -> Measured:
    """Simulate an epoch.

    Args:
        name: the algorithm.
        options: its options.
        network: the network.
        steps: the number of steps of each learner.
    """
    learners = _learners(name, options)
    step = read_cluster("ibm_v100").step
    assert step is not None
    compute = Compute(seconds=step.of(BATCH), spread=SPREAD)
    simulation = Simulation(learners, compute, network.for_larger_messages(FACTOR))
    simulation.start()
    began = simulation.seconds
    for virtual in learners:
        virtual.metrics()
    apart = _apart(simulation, steps)
    ends = [line.seconds for line in simulation.record if line.step == steps]
    figures = [virtual.metrics() for virtual in learners]
    exchanges = [f["exchanges"] for f in figures if f.get("exchanges")]
    return Measured(
        seconds=(fmean(ends) - began) / steps,
        exchanges=fmean(exchanges) / steps if exchanges else 0.0,
        staleness=max(f.get("staleness_max", 0.0) for f in figures),
        distance=apart,
    )


def _learners(name: str, options: dict[str, Any]) -> list[VirtualLearner]:
    problem = Quadratic(dimension=DIMENSION, batch_size=BATCH)
    learners = []
    for rank in range(LEARNERS):
        model, gradient = problem.replica(rank, LEARNERS)
        optimizer = SGD(model.parameters(), lr=0.05)
        learners.append(
            VirtualLearner(
                model, optimizer, gradient, name, rank, LEARNERS, FACTOR, **options
            )
        )
    return learners


def _apart(simulation: Simulation, steps: int) -> float:
    """Train, and return how far the learners are apart after their last steps."""
    ends: dict[int, torch.Tensor] = {}

    def look(running: Simulation) -> None:
        for virtual in running.learners:
            learner = virtual.learner
            if learner.steps == steps and learner.rank not in ends:
                ends[learner.rank] = learner.params.detach().clone()

    simulation.check = look
    simulation.epoch(steps)
    params = torch.stack([ends[rank] for rank in range(LEARNERS)])
    return float((params - params.mean(0)).square().sum(1).mean().sqrt())


def main() -> None:
    """Simulate, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, one card")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    cards, steps = (GIGABITS[:1], 4) if args.quick else (GIGABITS, STEPS)
    torch.set_num_threads(1)
    cluster = read_cluster("ibm_v100")
    lines = [
        "| card | algorithm | a step | the whole training | exchanges a step "
        "| staleness, max | distance |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
    ]
    data = []
    for gigabits in cards:
        rate = gigabits * 1e9 / 8
        link = replace(cluster.network.between, bandwidth=rate)
        network = replace(cluster.network, card=rate, between=link)
        for label, name, options in METHODS:
            found = run(name, options, network, steps)
            hours = found.seconds * PUBLISHED_STEPS / 3600
            lines.append(
                f"| {gigabits} Gbit/s | {label} | {1e3 * found.seconds:.0f} ms "
                f"| {hours:.1f} h | {found.exchanges:.2f} | {found.staleness:.0f} "
                f"| {found.distance:.2g} |"
            )
            data.append({"gigabits": gigabits, "label": label, **asdict(found)})
            print(lines[-1], flush=True)
    caption = (
        f"Simulated: {LEARNERS // NODE} nodes of {NODE} learners share a card in each "
        f"node; {steps} steps of 0.151 s (log-normal, sigma {SPREAD}), messages of "
        f"{MODEL_BYTES / 1e6:g} MB. The whole training is {PUBLISHED_STEPS} steps; the "
        f"paper reports {PUBLISHED_HOURS} h for H-ADPSGD on 100 Gbit/s. Exchanges are "
        "those of a learner that exchanges, which is a node's leader with hadpsgd. The "
        "distance is the root mean square distance of the learners from their mean "
        f"after their last step, on a noisy quadratic of {DIMENSION} dimensions."
    )
    write_report(
        "hierarchy", args.quick, args.out, lines, caption, data, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
