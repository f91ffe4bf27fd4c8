"""What several commands have in common: options, and what they print of progress."""

import argparse
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.ldc.discs import MAX_LOST
from espnet_distopt.recipes.scoring.trn import read_utt2spk


def corpus_parser(
    description: str | None, out: str, sizes: Mapping[str, tuple[int, str]]
) -> argparse.ArgumentParser:
    """Build the parser of a command that makes a synthetic corpus.

    It has `--out`, `--seed`, `--nj`, and an option for each size.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help=out)
    add("--seed", type=int, default=0, help="of everything")
    add("--nj", type=int, default=2, help="number of processes")
    for name, (default, meaning) in sizes.items():
        add(f"--{name}", type=int, default=default, help=meaning)
    return parser


def add_max_lost(parser: argparse.ArgumentParser, what: str, why: str) -> None:
    """Add `--max_lost`, which limits what a command leaves out (`Losses`)."""
    parser.add_argument(
        "--max_lost",
        type=float,
        default=MAX_LOST,
        metavar="PERCENT",
        help=f"how many of {what} may be left out because {why}; more are an error "
        "(default: %(default)g)",
    )


def format_parser(description: str, keep_all: str) -> argparse.ArgumentParser:
    """Build the parser of a command that formats a data directory.

    It has `source`, `target`, `--keep_all` and `--nj`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("source", type=Path, help="data directory, as data/train")
    add("target", type=Path, help="directory to write, as dump/train")
    add("--keep_all", action="store_true", help=keep_all)
    add("--nj", type=int, default=1, help="number of processes")
    return parser


def read_speakers(path: Path | None, utterances: Collection[str]) -> dict[str, str]:
    """Return who has spoken, or written, each utterance; warn of those it lacks.

    Raises:
        InputError: The file is missing or malformed.
    """
    if path is None:
        return {}
    speakers = read_utt2spk(path)
    if unknown := set(utterances) - speakers.keys():
        print(
            f"warning: {path}: {len(unknown)} of {len(utterances)} utterances have no "
            f"speaker, the first is {min(unknown)}: each counts as a speaker of its "
            "own",
            file=sys.stderr,
        )
    return speakers


def add_halves(parser: argparse.ArgumentParser, members: str) -> None:
    """Add the option `--half`, whose values `scoring.trn.parse_halves` reads."""
    parser.add_argument(
        "--half",
        action="append",
        default=[],
        metavar="NAME=REGEX",
        help=f"also score the {members} matches (repeatable)",
    )


def model_files(exp: Path, model: str) -> tuple[Path, Path]:
    """Return the configuration and the model that `--exp` and `--model` name.

    Raises:
        InputError: One of them does not exist.
    """
    files = exp / "config.yaml", exp / model
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file")
    return files


def named_sets(options: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the name and the directory of each `--data NAME=DUMP`.

    Raises:
        InputError: An option is not of this form.
    """
    for option in options:
        name, sign, dump = option.partition("=")
        if not (name and sign and dump):
            raise InputError(
                f"--data {option}: expected NAME=DUMP, as train=dump/train"
            )
        yield name, Path(dump)


# What a command prints of its progress, for those who watch it.


def say(line: str) -> None:
    """Print a line at once, even into a file."""
    print(line, flush=True)


SILENT, EVERY = 2.0, 15.0
"""The seconds before the first line of progress, and from one to the next."""


class ProgressLine:
    """Prints now and then how much is done, unless all is done in no time.

    Args:
        line: The text, in which {done} and {total} stand for numbers of units.
    """

    def __init__(self, line: str) -> None:
        self._line, self._next = line, time.monotonic() + SILENT

    def __call__(self, done: int, total: int) -> None:
        """Tell how many units are done; there may be many more than the last time."""
        if (now := time.monotonic()) >= self._next:
            print(self._line.format(done=done, total=total), flush=True)
            self._next = now + EVERY
