"""Show the state, the speed and the figures of each learner of trainings."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.table import table

EVERY = 15.0
"""The seconds from one time to the next with `--watch`."""


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Show how trainings go, or went. Reads the learners' own files "
        "(EXP/distopt/learner*.jsonl), or else the log of stock ESPnet "
        "(EXP/train.log). Rates and shares are those of the last five "
        "minutes of training: comm, time in collectives; wait, for gossip; cpu, 100% "
        "is a core. The slowest learner is the one that computes longest per "
        "utterance.",
    )
    parser.add_argument("exp", type=Path, nargs="+", help="experiment directories")
    parser.add_argument(
        "--watch",
        action="store_true",
        help=f"show it again every {EVERY:.0f} seconds, until Ctrl-C",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE.png",
        help="write one picture of the losses of all trainings over time",
    )
    parser.add_argument("--title", default="Losses", help="heading of --compare")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Show the trainings once, or again and again."""
    args = get_parser().parse_args(cmd)
    if not args.watch:
        if not show(args.exp, args.compare, args.title):
            raise SystemExit(2)
        return
    try:
        while True:
            if sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            show(args.exp, args.compare, args.title)
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return


def show(directories: Sequence[Path], picture: Path | None, title: str) -> bool:
    """Print the state of the experiments once.

    A directory that is no experiment, or cannot be read, is skipped with a line on
    stderr. Returns whether there was an experiment, and all could be read. The file of
    a picture of their losses may be given, with its heading.

    Raises:
        InputError: The picture cannot be made.
    """
    experiments, all_read = [], True
    for directory in directories:
        try:
            found = Experiment.read(directory, whole=picture is not None)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            all_read = False
            continue
        if found is None:
            print(f"{directory}: {_nothing_in(directory)}", file=sys.stderr)
        else:
            experiments.append(found)
    now = time.time()
    print("\n".join(table(each, now) for each in experiments), end="", flush=True)
    if picture is not None and experiments:
        try:
            from espnet_distopt.monitoring.figures import compare
        except ModuleNotFoundError as error:
            name = error.name
            raise InputError(f"plots need {name}: pip install matplotlib") from None
        with explain_failed_write(picture):
            compare(experiments, picture, title)
    return all_read and bool(experiments)


def _nothing_in(directory: Path) -> str:
    """Return why a directory has no training to show."""
    log = directory / "train.log"
    if log.exists():
        rows = log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((row for row in reversed(rows) if row.strip()), "empty")
        return f"no epoch has begun by its train.log, which ends with: {last.strip()}"
    if any(directory.glob("epoch*.learner*.pt")):
        return "saves of a loop of your own, which itself prints session.metrics()"
    what = "no distopt/learner*.jsonl in it, and no train.log of ESPnet, skipped"
    trainings = any(directory.glob("*/distopt"))
    return what + f"; there are trainings in {directory}/*" * trainings


if __name__ == "__main__":
    main()
