"""The benchmark examines claims about the methods of this package.

It computes the trainings that have no result yet, and then writes docs/claims.md and
docs/claims_in_detail.md, even if it was interrupted. The claims are rows of
benchmarks/convergence/table.py. The laboratory trains what it has, and the simulation
the rest. Results are kept, so a run can be stopped and resumed. Without the file of
results all is computed anew. With a budget of 0 minutes the command only writes the
pages.

    FSDD=/path python benchmarks/claims.py --only no_loss_adam --budget-minutes 10
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from convergence.claim import Claim
from convergence.claims_page import PAGE, write
from convergence.stream_problems import prepare
from convergence.sweep import Sweep
from convergence.table import CLAIMS
from laboratory.run import compute as run
from laboratory.run import together
from report import ROOT

from espnet_distopt.files.writing import write_text

RESULTS = "claims.jsonl"
"""The file of results, a line for each training."""


def parser(names: list[str]) -> argparse.ArgumentParser:
    """Return the parser of the command.

    Args:
        names: the names of all claims.
    """
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument(
        "--fsdd",
        type=Path,
        default=os.environ.get("FSDD") or None,
        help="copy of the Free Spoken Digit Dataset (default: $FSDD)",
    )
    found.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    found.add_argument("--out", type=Path, help="folder of the results and the pages")
    found.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME",
        help=f"claims to compute: {', '.join(names)} (default: all)",
    )  # fmt: skip
    found.add_argument(
        "--budget-minutes",
        type=float,
        default=float("inf"),
        help="begin no training after so many minutes (default: no limit)",
    )
    return found


def compute(
    claims: Sequence[Claim], sweep: Sweep, fsdd: Path | None, until: float
) -> None:
    """Compute the cells of claims that have no result yet.

    Args:
        claims: the claims.
        sweep: the results.
        fsdd: the folder of a copy of the Free Spoken Digit Dataset.
        until: the time by `time.monotonic` after which no cell is begun.
    """
    while time.monotonic() < until:
        cells = [cell for claim in claims for cell in claim.cells(sweep.get)]
        if all(sweep.get(cell) for cell in cells):
            return
        if fsdd is None:
            raise SystemExit("error: set FSDD=/path/to/free-spoken-digit-dataset")
        prepare(fsdd)
        sweep.run(cells, until)


def pages(found: dict[str, Claim], sweep: Sweep) -> dict[str, str]:
    """Return the texts of the pages of claims, by their file names.

    Args:
        found: name -> claim.
        sweep: the results.
    """
    where = {}
    for name, claim in found.items():
        known = [cell for cell in claim.cells(sweep.get) if sweep.get(cell)]
        where[name] = Counter(
            "{processor}, torch {torch}, commit {commit}".format(**sweep.where(cell))
            for cell in known
        )
    return write(found, sweep.get, where)


def main() -> None:
    """Compute what is missing of the claims that are asked for, and write the page."""
    args = parser(sorted(CLAIMS)).parse_args()
    until = time.monotonic() + 60 * args.budget_minutes
    out = args.out or ROOT / "benchmarks/results"
    docs = args.out or ROOT / "docs"
    docs.mkdir(parents=True, exist_ok=True)
    sweep = Sweep(out / RESULTS, run, args.workers, together)
    try:
        compute([CLAIMS[name] for name in args.only], sweep, args.fsdd, until)
    finally:
        for name, text in pages(CLAIMS, sweep).items():
            write_text(docs / name, text)
    print(f"written: {docs / PAGE}")


if __name__ == "__main__":
    main()
