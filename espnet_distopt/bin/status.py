"""Show the state, the speed and the figures of each learner of trainings."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.report import report
from espnet_distopt.monitoring.table import table


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
        "--watch",
        type=float,
        nargs="?",
        const=15.0,
        metavar="SECONDS",
        help="again and again, until Ctrl-C (every 15 seconds)",
    )
    parser.add_argument("--json", action="store_true", help="JSON, a list")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="write a plot")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Show the trainings once, or again and again."""
    args = get_parser().parse_args(cmd)
    if args.watch is not None and not args.watch > 0:
        raise InputError(f"--watch: expected seconds > 0, not {args.watch:g}")
    if args.watch is None:
        if not show(args.exp, args.json, args.plot):
            raise SystemExit(2)
        return
    try:
        while True:
            if sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            show(args.exp, args.json, args.plot)
            time.sleep(args.watch)
    except KeyboardInterrupt:
        return


def show(directories: Sequence[Path], as_json: bool, picture: Path | None) -> bool:
    """Print the state of the experiments once.

    A directory that is no experiment, or cannot be read, is skipped with a line on
    stderr.

    Args:
        directories: The directories of the experiments.
        as_json: Whether JSON is printed instead of tables.
        picture: The file of the plot; None for no plot.

    Returns:
        Whether there was an experiment, and all could be read.

    Raises:
        InputError: The plot cannot be made.
    """
    experiments, whole = [], True
    for directory in directories:
        try:
            found = Experiment.read(directory, whole=picture is not None)
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
    if picture is not None and experiments:
        _plot(experiments, picture)
    return whole and bool(experiments)


def _plot(experiments: Sequence[Experiment], picture: Path) -> None:
    try:
        from espnet_distopt.monitoring.plots import plot
    except ModuleNotFoundError as error:
        raise InputError(f"--plot needs {error.name}: pip install matplotlib") from None
    with explain_failed_write(picture):
        plot(experiments, picture)


if __name__ == "__main__":
    main()
