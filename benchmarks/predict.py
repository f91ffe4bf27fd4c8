"""The benchmark predicts step times that others measured on real clusters.

It calibrates a few constants of each cluster on some published rows, predicts the
others, and reports the errors with the worst first. docs/prediction.md says what
explains the errors.

    python benchmarks/predict.py          # half a minute; one core
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from prediction.model import (
    A40,
    A100,
    T4,
    Calibration,
    Cell,
    calibrate,
)
from report import write_report

NAMES = {
    "ddp": "all-reduce (DDP)",
    "sgp": "SGP (exponential)",
    "exp": "decentralised (exponential)",
    "aer": "decentralised (alternating)",
}


def published_cells() -> list[Cell]:
    """Return all cells whose published value is known."""
    return [
        (cluster, learners, method)
        for cluster in (T4, A100, A40)
        for learners, row in cluster.steps.items()
        for method in row
    ]


def error(calibration: Calibration, cell: Cell) -> float:
    """Return predicted / published - 1."""
    cluster, learners, method = cell
    predicted = calibration.constants[cluster.name].milliseconds(cell)
    return predicted / cluster.steps[learners][method] - 1


def constants_table(calibration: Calibration) -> list[str]:
    """Return what was calibrated."""
    lines = [
        "| cluster | fixed part of a step | for 1,000 tokens | model through a card "
        "| through one connection | through the bus | DDP's overlap |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]
    for name, found in calibration.constants.items():
        lines.append(
            f"| {name} | {1e3 * found.step.fixed:.1f} ms "
            f"| {1e6 * found.step.sample:.1f} ms | {1e3 * found.card:.1f} ms "
            f"| {1e3 * found.link:.1f} ms | {1e3 * found.bus:.1f} ms "
            f"| {found.overlap:g} |"
        )
    return lines


def errors_table(calibration: Calibration) -> list[str]:
    """Return all published rows, worst first; calibrated ones are marked."""
    cells = sorted(published_cells(), key=lambda cell: -abs(error(calibration, cell)))
    lines = [
        "| cluster | learners | method | published | predicted | error |",
        "| :-- | --: | :-- | --: | --: | --: |",
    ]
    for cell in cells:
        cluster, learners, method = cell
        mark = " (calibrated on)" if cell in calibration.rows else ""
        predicted = calibration.constants[cluster.name].milliseconds(cell)
        lines.append(
            f"| {cluster.name} | {learners} | {NAMES[method]}{mark} "
            f"| {cluster.steps[learners][method]:.1f} ms | {predicted:.1f} ms "
            f"| {100 * error(calibration, cell):+.1f} % |"
        )
    return lines


def summary(calibration: Calibration) -> dict[str, float]:
    """Return the median and worst size of the errors, of all rows and of the unseen."""
    cells = published_cells()
    unseen = [cell for cell in cells if cell not in calibration.rows]
    figures: dict[str, float] = {"rows": len(cells), "unseen_rows": len(unseen)}
    for name, among in ("", cells), ("unseen_", unseen):
        sizes = [abs(error(calibration, cell)) for cell in among]
        figures[f"{name}median_error"] = median(sizes)
        figures[f"{name}worst_error"] = max(sizes)
    return figures


def record(calibration: Calibration) -> dict[str, Any]:
    """Return all figures for the JSON file."""
    return {
        "constants": {
            name: {
                "fixed_seconds": found.step.fixed,
                "seconds_per_token": found.step.sample,
                "card_seconds": found.card,
                "link_seconds": found.link,
                "bus_seconds": found.bus,
                "overlap": found.overlap,
            }
            for name, found in calibration.constants.items()
        },
        "rows": [
            {
                "cluster": cell[0].name,
                "learners": cell[1],
                "method": cell[2],
                "published_ms": cell[0].steps[cell[1]][cell[2]],
                "error": error(calibration, cell),
                "calibrated_on": cell in calibration.rows,
            }
            for cell in published_cells()
        ],
        **summary(calibration),
    }


def main() -> None:
    """Calibrate, predict, and write the tables to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    calibration = calibrate()
    found = summary(calibration)
    lines = [
        "Errors, the worst first:",
        "",
        *errors_table(calibration),
        "",
        "What was calibrated:",
        "",
        *constants_table(calibration),
    ]
    caption = (
        "Published: arXiv 2410.11998, figure 6. Predicted: times of the simulation's "
        "network model, in which the learners of a node share a card and a bus. Of "
        f"{found['rows']} rows {found['unseen_rows']} were not calibrated on; their "
        f"median error is {100 * found['unseen_median_error']:.1f} %, the worst "
        f"{100 * found['unseen_worst_error']:.1f} %. Of all rows the median is "
        f"{100 * found['median_error']:.1f} %. No constant belongs to a single method "
        "or row. A model through a card or bus is the time of one message with all "
        "parameters."
    )
    write_report(
        "predict",
        False,
        args.out,
        lines,
        caption,
        record(calibration),
        seeds=[],
        repeats=1,
    )


if __name__ == "__main__":
    main()
