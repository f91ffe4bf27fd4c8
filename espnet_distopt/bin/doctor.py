"""Check a machine: what it has, and what is missing for what."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.machine_checks import (
    Check,
    check_arks,
    check_espnet,
    check_folder,
    check_host_name,
    check_hubscr,
    check_lightning,
    check_nltk,
    check_python,
    check_rendezvous,
    check_sclite,
    check_threads,
    check_torch,
    package,
    program,
)
from espnet_distopt.errors import one_line_errors

SECTIONS: dict[str, list[Check]] = {
    "a training loop of your own": [
        check_python,
        check_torch,
        package("numpy", "everything"),
        package("yaml", "configurations", "PyYAML"),
        check_rendezvous,
        check_host_name,
        check_threads,
        check_folder,
    ],
    "an ESPnet training": [
        check_espnet,
        check_nltk,
        check_arks,
        package("soundfile", "speech"),
        package("sentencepiece", "subwords"),
    ],
    "Lightning": [check_lightning],
    "the recipes": [
        program("bash", "the recipes' scripts"),
        package("soxr", "resampling"),
        package("numba", "speech in Shorten's compression"),
        package("scipy", "synthetic telephone channels"),
        package("espeakng_loader", "synthetic speech", "espeakng-loader"),
        package("PIL", "text lines", "pillow"),
        package("sklearn", "handwritten digits", "scikit-learn"),
        package("matplotlib", "pictures"),
    ],
    "scoring": [check_sclite, check_hubscr, package("jiwer", "word errors")],
    "a cluster": [program("sbatch", "jobs of Slurm")],
}
"""What a user may want to do -> what is checked for it, in the order of the output."""


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
    short = {section: _show(section, args.dir) for section in SECTIONS}
    lacking = [section for section, count in short.items() if count]
    print()
    if lacking:
        print(f"Something is missing for: {'; '.join(lacking)}.")
    else:
        print("Nothing is missing.")
    if short["a training loop of your own"]:
        raise SystemExit(1)


def _show(section: str, folder: Path) -> int:
    """Print a section, and return how much is missing for it."""
    print(f"for {section}", flush=True)
    count = 0
    for check in SECTIONS[section]:
        found = check(folder)
        print(f"  {found.mark:8} {found.text}", flush=True)
        count += found.mark == "missing"
    return count


if __name__ == "__main__":
    main()
