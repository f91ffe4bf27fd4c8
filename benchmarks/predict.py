"""The benchmark predicts step times that others measured on real clusters.

It calibrates a few constants of each cluster on some published rows, predicts the
others, and reports the errors with the worst first. The rows that were kept back when
this was written are predicted, too. docs/prediction.md says what explains the errors.

    python benchmarks/predict.py          # a minute; one core
"""

import argparse
from pathlib import Path

from prediction import rows
from prediction.calibration import calibrate
from report import write_report


def main() -> None:
    """Calibrate, predict, and write the tables to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    calibration = calibrate()
    found = rows.summary(calibration)
    lines = [
        "Errors, the worst first:",
        "",
        *rows.errors_table(calibration),
        "",
        "Rows that were kept back, but for all-reduce:",
        "",
        *rows.kept_back_table(calibration),
        "",
        "What was calibrated:",
        "",
        *rows.constants_table(calibration),
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
        rows.record(calibration),
        seeds=[],
        repeats=1,
    )


if __name__ == "__main__":
    main()
