"""The module writes the tables of published, predicted and kept-back step times."""

from statistics import median
from typing import Any

from prediction.calibration import OVERLAPS, Calibration, Cell, misfit, with_overlap
from prediction.limits import Least
from prediction.published import A40, A100, BATCH, METHODS, T4

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
        "| model through the bus | DDP's overlap |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for name, found in calibration.constants.items():
        lines.append(
            f"| {name} | {1e3 * found.step.fixed:.1f} ms "
            f"| {1e6 * found.step.sample:.1f} ms | {1e3 * found.card:.1f} ms "
            f"| {1e3 * found.bus:.1f} ms | {found.overlap:g} |"
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


def kept_back(calibration: Calibration) -> dict[int, dict[str, float]]:
    """Return the milliseconds predicted for the A40's rows that were not known."""
    found = calibration.constants[A40.name]
    return {
        learners: {m: found.milliseconds((A40, learners, m)) for m in METHODS}
        for learners in A40.steps
    }


def kept_back_table(calibration: Calibration) -> list[str]:
    """Return the predictions that were made before the values were looked up."""
    lines = [
        "| learners | tokens of a learner | " + " | ".join(NAMES.values()) + " |",
        "| --: | --: |" + " --: |" * len(NAMES),
    ]
    for learners, row in kept_back(calibration).items():
        cells = [f"{row[method]:.1f} ms" for method in METHODS]
        lines.append(
            f"| {learners} | {BATCH // learners} | " + " | ".join(cells) + " |"
        )
    return lines


def overlaps_table() -> list[str]:
    """Return what each overlap factor makes of the calibration, and of its errors.

    The misfit is that of the rows of T4 and A100 that are calibrated on.
    """
    lines = [
        "| overlap | misfit | card of the T4 | bus of the T4 "
        "| T4, 64 learners, exponential | worst error |",
        "| --: | --: | --: | --: | --: | --: |",
    ]
    for overlap in OVERLAPS:
        found = with_overlap(overlap)
        constants = found.constants[T4.name]
        rows = [cell for cell in found.rows if cell[0] != A40]
        misfits = (misfit(found.constants[cell[0].name], [cell]) for cell in rows)
        lines.append(
            f"| {overlap:g} | {sum(misfits):.5f} | {1e3 * constants.card:.1f} ms "
            f"| {1e3 * constants.bus:.1f} ms "
            f"| {100 * error(found, (T4, 64, 'exp')):+.1f} % "
            f"| {100 * summary(found)['worst_error']:.1f} % |"
        )
    return lines


def limits_table(limits: dict[str, Least]) -> list[str]:
    """Return the least worst errors, by what was asked of the constants."""
    lines = [
        "| constants | worst error | overlap | cards: T4, A100 | buses: T4, A100 |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for name, least in limits.items():
        cards, buses = (
            ", ".join(f"{1e3 * of[cluster.name]:.1f} ms" for cluster in (T4, A100))
            for of in (least.cards, least.buses)
        )
        lines.append(
            f"| {name} | {100 * least.error:.1f} % | {least.overlap:g} "
            f"| {cards} | {buses} |"
        )
    return lines


def record(calibration: Calibration) -> dict[str, Any]:
    """Return all figures for the JSON file."""
    return {
        "constants": {
            name: {
                "fixed_seconds": found.step.fixed,
                "seconds_per_token": found.step.sample,
                "card_seconds": found.card,
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
        "kept_back_ms": kept_back(calibration),
        **summary(calibration),
    }
