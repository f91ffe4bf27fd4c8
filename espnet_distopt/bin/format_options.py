"""Options that the commands for formatting share."""

import argparse
from pathlib import Path


def format_parser(description: str, keep_all: str) -> argparse.ArgumentParser:
    """Build a parser with source, target, `--keep_all` and `--nj`.

    Args:
        description: of the command.
        keep_all: what is kept.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("source", type=Path, help="data directory, as data/train")
    parser.add_argument("target", type=Path, help="directory to write, as dump/train")
    parser.add_argument("--keep_all", action="store_true", help=keep_all)
    parser.add_argument("--nj", type=int, default=1, help="number of processes")
    return parser
