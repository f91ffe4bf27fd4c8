"""Show the state, the speed and the figures of each learner of trainings."""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.report import report
from espnet_distopt.monitoring.table import table

Draw = Callable[[Sequence[Experiment], Path], None]
"""Writes a plot of experiments into a file."""


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Show how trainings go, or went. Reads the learners' own files "
        "(EXP/distopt/learner*.jsonl). Rates and shares are those of the last five "
        "minutes of training: comm, time in collectives; wait, for gossip; cpu, 100% "
        "is a core. The slowest learner is the one that computes longest per "
        "utterance.",
    )
    parser.add_argument("exp", type=Path, nargs="+", help="experiment directories")
    parser.add_argument(
        "--watch", action="store_true", help="show it again and again, until Ctrl-C"
    )
    parser.add_argument(
        "--every",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="seconds from one time to the next with --watch (default 15)",
    )
    parser.add_argument("--json", action="store_true", help="JSON, a list")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="write a plot")
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE.png",
        help="write one plot of the losses of all trainings over time",
    )
    parser.add_argument("--title", default="Losses", help="heading of --compare")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Show the trainings once, or again and again."""
    args = get_parser().parse_args(cmd)
    if not 0 < args.every <= threading.TIMEOUT_MAX:
        raise InputError(f"--every: expected seconds > 0, not {args.every:g}")
    pictures: dict[Path, Draw] = {}
    if args.plot is not None:
        pictures[args.plot] = _plot
    if args.compare is not None:
        pictures[args.compare] = partial(_compare, title=args.title)
    if not args.watch:
        if not show(args.exp, args.json, pictures):
            raise SystemExit(2)
        return
    try:
        while True:
            if sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            show(args.exp, args.json, pictures)
            time.sleep(args.every)
    except KeyboardInterrupt:
        return


def show(
    directories: Sequence[Path], as_json: bool, pictures: Mapping[Path, Draw]
) -> bool:
    """Print the state of the experiments once.

    A directory that is no experiment, or cannot be read, is skipped with a line on
    stderr.

    Args:
        directories: The directories of the experiments.
        as_json: Whether JSON is printed instead of tables.
        pictures: The file of each plot, and what draws it.

    Returns:
        Whether there was an experiment, and all could be read.

    Raises:
        InputError: The plot cannot be made.
    """
    experiments, whole = [], True
    for directory in directories:
        try:
            found = Experiment.read(directory, whole=bool(pictures))
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            whole = False
            continue
        if found is None:
            what = f"{directory}: no distopt/learner*.jsonl in it, skipped"
            print(what, file=sys.stderr)
        else:
            experiments.append(found)
    now = time.time()
    if as_json:
        print(json.dumps([report(each, now) for each in experiments], indent=1))
    else:
        print("\n".join(table(each, now) for each in experiments), end="", flush=True)
    for path, draw in pictures.items() if experiments else ():
        try:
            with explain_failed_write(path):
                draw(experiments, path)
        except ModuleNotFoundError as error:
            name = error.name
            raise InputError(f"plots need {name}: pip install matplotlib") from None
    return whole and bool(experiments)


def _plot(experiments: Sequence[Experiment], path: Path) -> None:
    from espnet_distopt.monitoring.plots import plot

    plot(experiments, path)


def _compare(experiments: Sequence[Experiment], path: Path, title: str) -> None:
    from espnet_distopt.monitoring.comparison import compare

    compare(experiments, path, title)


if __name__ == "__main__":
    main()
