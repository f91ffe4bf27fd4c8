"""Check a machine: what it has, and what is missing for what."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin import WINGS
from espnet_distopt.bin.machine_checks import Check
from espnet_distopt.errors import one_line_errors

NECESSARY = "a training loop of your own"
"""The section without which nothing works."""


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Check what this machine has for training, and say what is "
        "missing for what. Nothing is installed or changed. The exit status is 1 if "
        "not even a training loop of your own could run.",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(),
        help="where experiments would go (default: here)",
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the checks, and print what each has found as soon as it is known."""
    args = get_parser().parse_args(cmd)
    short = {name: _show(name, checks, args.dir) for name, checks in sections().items()}
    lacking = [section for section, count in short.items() if count]
    print()
    if lacking:
        print(f"Something is missing for: {'; '.join(lacking)}.")
    else:
        print("Nothing is missing.")
    if short[NECESSARY]:
        raise SystemExit(1)


def sections() -> dict[str, list[Check]]:
    """Return what a user may want to do -> what is checked for it, in order."""
    found: dict[str, list[Check]] = {}
    for wing in WINGS:
        found |= importlib.import_module(f"{wing}.machine_checks").SECTIONS
    return found


def _show(section: str, checks: list[Check], folder: Path) -> int:
    """Print a section, and return how much is missing for it."""
    print(f"for {section}", flush=True)
    count = 0
    for check in checks:
        found = check(folder)
        print(f"  {found.mark:8} {found.text}", flush=True)
        count += found.mark == "missing"
    return count


if __name__ == "__main__":
    main()
