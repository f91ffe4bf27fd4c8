"""The benchmark predicts step times that others measured on real clusters.

It calibrates a few constants of each cluster on some published rows, predicts the
others, and reports the errors with the worst first. The rows that were kept back when
this was written are predicted, too. Three further tables ask what the errors come from:
what the calibration leaves open, what another choice of its rows changes, and how near
any constants could come. docs/prediction.md says what explains the errors.

    python benchmarks/predict.py          # three minutes; one core
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from prediction import rows
from prediction.calibration import calibrate
from prediction.limits import least_worst, worst_errors
from prediction.published import A100, METHODS, T4
from report import write_report


def main() -> None:
    """Calibrate, predict, and write the tables to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    calibration, other = calibrate(), calibrate("largest")
    found, others = rows.summary(calibration), rows.summary(other)
    every = worst_errors([T4, A100], METHODS)
    without_sgp = [method for method in METHODS if method != "sgp"]
    limits = {
        "a card for each cluster": least_worst(every, one_card=False),
        "one card for both": least_worst(every, one_card=True),
        "one card for both, without the rows of SGP": least_worst(
            worst_errors([T4, A100], without_sgp), one_card=True
        ),
    }
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
        "",
        "Each overlap factor; the misfit is the sum of the squared logarithms of "
        "predicted / published, over the rows of T4 and A100 that were calibrated on:",
        "",
        *rows.overlaps_table(),
        "",
        "Calibrated on the largest size of T4 and A100 in place of the smallest, with "
        f"a median error of {100 * others['unseen_median_error']:.1f} % and a worst of "
        f"{100 * others['unseen_worst_error']:.1f} % over the other rows:",
        "",
        *rows.errors_table(other),
        "",
        "The least worst error over all rows of T4 and A100 that any constants have, "
        "with a free compute time for each size:",
        "",
        *rows.limits_table(limits),
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
        {
            **rows.record(calibration),
            "largest": rows.record(other),
            "least_worst": {name: asdict(least) for name, least in limits.items()},
        },
        seeds=[],
        repeats=1,
    )


if __name__ == "__main__":
    main()
