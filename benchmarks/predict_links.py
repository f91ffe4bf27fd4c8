"""The benchmark predicts the measured tables of `links.py`, and reports the errors.

`links.py` measured four processes behind links of 1,000 and of 100 Mbit/s. Here the
same algorithms make the same steps in a simulation. What it is told are the seconds of
a step without communication and the rate that one send reached, both from the same
tables. Peers are not simulated.

    python benchmarks/predict_links.py          # half a minute; one core
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from emulated.methods import LAYERS
from links import FULL, LEARNERS, Case, planned
from report import ROOT, write_report
from torch import nn

from espnet_distopt.simulation import Compute, Link, Network, Simulation, VirtualLearner
from espnet_distopt.simulation.study.problem import DIMENSION, StandIn

RATES = (1000, 100)
LATENCY = 1e-4
"""Seconds; too little to matter beside messages that take a second or more."""

FACTOR = FULL.parameters / DIMENSION
"""By how much the messages of the stand-in count as larger than they are."""


def measured(rate: int) -> tuple[dict[str, float], float]:
    """Return the seconds of a step of each method, and the bytes a second of a send."""
    path = ROOT / "benchmarks" / "results" / f"links_{rate}"
    results = json.loads(path.with_suffix(".json").read_text())["results"]
    caption = path.with_suffix(".md").read_text()
    reached = re.search(rf"(\d+) of {rate} Mbit/s", caption)
    assert reached, f"{path}.md does not say what one send reached"
    seconds = {
        label: median(each["seconds"] for each in found)
        for label, found in results.items()
        if isinstance(found, list) and found
    }
    return seconds, float(reached[1]) * 1e6 / 8


def predicted(case: Case, rate: int, compute: float, bandwidth: float) -> float:
    """Return the seconds of a step, in the steps that were measured.

    Args:
        case: the method.
        rate: the rate of the links, in Mbit/s, which decides how many steps there are.
        compute: the seconds of a step without communication.
        bandwidth: the bytes a second of a link.
    """
    task = planned(case, FULL, rate)
    learners = [_learner(case, rank) for rank in range(LEARNERS)]
    network = Network(between=Link(latency=LATENCY, bandwidth=bandwidth))
    simulation = Simulation(
        learners, Compute(seconds=compute), network.for_larger_messages(FACTOR)
    )
    simulation.start()
    simulation.epoch(task.warm_up + task.steps)
    return (
        fmean(
            _at(simulation, rank, task.warm_up + task.steps)
            - _at(simulation, rank, task.warm_up)
            for rank in range(LEARNERS)
        )
        / task.steps
    )


def _learner(case: Case, rank: int) -> VirtualLearner:
    model, method = StandIn(LAYERS), case.method
    optimizer = method.optimizer(model.parameters())
    gradient = _gradient(model)
    options = dict(method.options)
    arguments: tuple[Any, ...] = model, optimizer, gradient, method.name, rank
    return VirtualLearner(*arguments, LEARNERS, FACTOR, **options)


def _gradient(model: nn.Module) -> Callable[[int], float]:
    """Return a gradient of ones, so that Adam has moments to send."""

    def gradient(_: int) -> float:
        ones = torch.stack([parameter.sum() for parameter in model.parameters()])
        ones.sum().backward()  # type: ignore[no-untyped-call]
        return 0.0

    return gradient


def _at(simulation: Simulation, rank: int, step: int) -> float:
    return next(
        line.seconds
        for line in simulation.record
        if line.rank == rank and line.step == step
    )


def main() -> None:
    """Predict, compare, and write the table to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for rate in RATES:
        seconds, bandwidth = measured(rate)
        for case in FULL.cases():
            label = case.method.label
            if not case.method.ours or label not in seconds:
                continue
            alone = "no communication" + (", Adam" if case.method.adam else "")
            value = predicted(case, rate, seconds[alone], bandwidth)
            error = value / seconds[label] - 1
            found.append(
                {"rate": rate, "label": label, "measured": seconds[label]}
                | {"predicted": value, "error": error}
            )
            print(f"{rate} Mbit/s, {label}: {100 * error:+.1f} %", flush=True)
    found.sort(key=lambda row: -abs(row["error"]))
    lines = [
        "| link | algorithm | measured | predicted | error |",
        "| :-- | :-- | --: | --: | --: |",
        *(
            f"| {row['rate']} Mbit/s | {row['label']} | {row['measured']:.3f} s "
            f"| {row['predicted']:.3f} s | {100 * row['error']:+.1f} % |"
            for row in found
        ),
    ]
    middle = median(abs(row["error"]) for row in found)
    caption = (
        "Measured: links_1000 and links_100, seconds a step. Predicted: simulated, the "
        "same steps of the same algorithms; calibrated on nothing but a step without "
        "communication and the rate that one send reached. The median error is "
        f"{100 * middle:.1f} %, the worst is in the first row."
    )
    write_report(
        "predict_links", False, args.out, lines, caption, found, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
