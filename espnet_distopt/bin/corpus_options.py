"""Options that the commands for the synthetic corpora share."""

import argparse
from collections.abc import Mapping
from pathlib import Path


def corpus_parser(
    description: str | None, out: str, sizes: Mapping[str, tuple[int, str]]
) -> argparse.ArgumentParser:
    """Build a parser with `--out`, `--seed`, `--nj`, and an option for each size.

    Args:
        description: of the command.
        out: what `--out` is.
        sizes: default and meaning of each.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help=out)
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument("--nj", type=int, default=2, help="number of processes")
    for name, (default, meaning) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
    return parser
