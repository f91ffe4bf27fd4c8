"""Print the results of a recipe's experiments as one Markdown report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.names import distinguishing_names
from espnet_distopt.scoring.experiment import DecodedExperiment
from espnet_distopt.scoring.report import Environment, render


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Print a Markdown table of word and character error rates, one row "
        "for each way in which an experiment was decoded, from the results that "
        "scoring wrote below it. What is not a scored experiment is left out, so that "
        "exp/* may be given.",
    )
    parser.add_argument("experiments", type=Path, nargs="+", metavar="EXP")
    parser.add_argument("--title", default="Results", help="heading of the report")
    parser.add_argument("--note", help="sentence to stand above the figures")
    parser.add_argument("--command", help="command that made the results")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Print the report; what is left out goes to stderr."""
    args = get_parser().parse_args(cmd)
    experiments = [
        decoded
        for path, name in zip(
            args.experiments, distinguishing_names(args.experiments), strict=True
        )
        for decoded in DecodedExperiment.read(path, name)
    ]
    scored = [experiment for experiment in experiments if experiment.results]
    for experiment in experiments:
        if not experiment.results:
            print(f"{experiment.name}: not scored, left out", file=sys.stderr)
    if not scored:
        raise InputError(
            f"{args.experiments[0]}: no */*/score_[cw]er/result.json in any "
            "experiment: score first"
        )
    environment = Environment.current()
    report = render(
        scored, environment, title=args.title, command=args.command, note=args.note
    )
    print(report, end="")


if __name__ == "__main__":
    main()
