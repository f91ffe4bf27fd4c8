"""The benchmark measures what gossip costs a learner that has a core of its own.

`links.py` has four learners on two cores, so the work of the network competes with the
learners. Here two learners share two cores. Otherwise the measurement is the same: the
forward and backward passes are emulated by sleep, and all else is real.

    python benchmarks/links_core_each.py          # as root; four minutes
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from emulated.link_cases import FULL, QUICK
from emulated.namespaces import network
from links import measure_all, table
from report import how_often, write_report

from espnet_distopt.errors import one_line_errors

LEARNERS = 2
RATE = 1000
"""The rate of the links, in Mbit/s."""

METHODS = ("none", "bare TCP", "adpsgd")


def _caption(parameters: int, seconds: float, repeats: int) -> str:
    return (
        f"{LEARNERS} processes on {os.cpu_count()} cores, each in a network namespace "
        f"of its own, whose link has {RATE} Mbit/s. The model has "
        f"{parameters / 1e6:.3g} million parameters in float32. The forward and "
        f"backward passes are emulated: they sleep {seconds} s. The optimizer's step "
        "is real, and so is all that a method does with parameters. `Over no "
        "communication` is the ratio to the loop without communication: "
        f"{how_often(repeats)}. `Exchanges a step` counts models for bare TCP, which "
        "carries zeros in both directions all the time. `CPU` counts all threads of a "
        "learner's process, without the kernel's part of the network."
    )


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a small model")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args(cmd)
    size = replace(QUICK if args.quick else FULL, names=METHODS)
    with network(LEARNERS, RATE) as places:
        rows = measure_all(places, size, RATE)
    write_report(
        "links_core_each",
        args.quick,
        args.out,
        table(rows, size, RATE),
        _caption(size.parameters, size.seconds, size.repeats),
        {
            row.case.method.label: row.failure or [asdict(f) for f in row.found]
            for row in rows
        },
        seeds=["each learner's rank, for its gradients"],
        repeats=size.repeats,
        arguments=cmd,
    )


if __name__ == "__main__":
    main()
