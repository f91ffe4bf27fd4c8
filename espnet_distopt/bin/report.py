"""Write one page about trainings: losses, speed, waiting, deaths, error rates."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.report_page import Training, page
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.names import distinguishing_names
from espnet_distopt.files.writing import explain_failed_write, write_text
from espnet_distopt.scoring.report import Environment


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write a page of HTML about one or several trainings, with its "
        "pictures in it, so that it can be mailed and read without a network. It has "
        "what the learners have written (EXP/distopt/learner*.jsonl), what scoring has "
        "written, and the configurations. A directory with neither learners nor scores "
        "is left out, so that exp/* may be given.",
    )
    parser.add_argument("experiments", type=Path, nargs="+", metavar="EXP")
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE.html", help="the page"
    )
    parser.add_argument("--title", default="Trainings", help="heading of the page")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the page; what is left out goes to stderr."""
    args = get_parser().parse_args(cmd)
    names = distinguishing_names(args.experiments)
    found = [
        (directory, Training.read(directory, name))
        for directory, name in zip(args.experiments, names, strict=True)
    ]
    for directory, training in found:
        if training is None:
            print(f"{directory}: no training, left out", file=sys.stderr)
    trainings = [training for _, training in found if training is not None]
    if not trainings:
        raise InputError(
            f"{args.experiments[0]}: no distopt/learner*.jsonl and no scores in any "
            "directory: train or score first"
        )
    try:
        text = page(trainings, Environment.current(), title=args.title, now=time.time())
    except ModuleNotFoundError as error:
        raise InputError(
            f"a report needs {error.name}: pip install matplotlib"
        ) from None
    with explain_failed_write(args.out):
        write_text(args.out, text)


if __name__ == "__main__":
    main()
