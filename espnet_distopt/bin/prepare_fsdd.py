"""Prepare digit strings from the Free Spoken Digit Dataset."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write the data directories train, dev, test_known (the known "
        "speakers) and test_unseen (a speaker who is not in training).",
    )
    parser.add_argument(
        "--fsdd",
        type=Path,
        default=os.environ.get("FSDD") or None,
        help="copy of the dataset (default: $FSDD)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("data"), help="where (default: data)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything (default 0)")
    parser.add_argument(
        "--unseen_speaker", default="theo", help="kept out of training (default: theo)"
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Make the sets, and print a table of them."""
    args = get_parser().parse_args(cmd)
    # This comes late, so that --help doesn't wait for numpy.
    from espnet_distopt.corpora.fsdd import URL, prepare

    if args.fsdd is None:
        raise InputError(
            "no copy of the dataset: set FSDD=/path/to/free-spoken-digit-dataset, or "
            f"let the recipe clone {URL}"
        )
    if args.seed < 0:
        raise InputError(f"--seed {args.seed}: expected 0 or more")
    summaries = prepare(
        args.fsdd, args.out, seed=args.seed, unseen_speaker=args.unseen_speaker
    )
    print(f"{'set':<12} {'strings':>7} {'words':>7} {'hours':>6}")
    for summary in summaries:
        print(
            f"{summary.name:<12} {summary.strings:>7} {summary.words:>7} "
            f"{summary.hours:>6.2f}"
        )


if __name__ == "__main__":
    main(None)
