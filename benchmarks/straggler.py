"""The benchmark measures how much one slow learner slows the others, by method.

Real processes train over gloo; one of them is ten times slower. Most of computing is a
sleep, so two cores are enough. A loop is one of

    plain       four learners, all algorithms and the peers; ten minutes
    lightning   four learners by Lightning's trainer; three minutes
    espnet3     two learners of ESPnet3's recipe mini_an4; half an hour

The modules of `straggling` say what each of them measures, and `straggling/frame.py`
what a bound is.

    python benchmarks/straggler.py                     # the plain loop
    python benchmarks/straggler.py --loop lightning
"""

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from emulated.learners import LearnersFailedError
from report import how_often, write_report
from straggling.frame import Loop, Row, table

from espnet_distopt.errors import one_line_errors

LOOPS = {
    "plain": "straggling.plain",
    "lightning": "straggling.lightning_loop",
    "espnet3": "straggling.espnet3_loop",
}
"""Loop -> its module, which only this loop imports: Lightning may be missing."""


def measure_all(loop: Loop, rows: Sequence[Row], repeats: int) -> None:
    """Make every run, with interleaved repeats of those that need more than one."""
    for repeat in range(repeats):
        for row in rows:
            if row.failure or (repeat and row.run.once):
                continue
            try:
                row.found.append(loop.measure(row.run))
                print(f"{row.label}: {row.found[-1]}", flush=True)
            except LearnersFailedError as error:
                row.failure = str(error)
                print(f"{row.label}: {row.failure}", flush=True)


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loop", choices=LOOPS, default="plain")
    parser.add_argument(
        "--slowdown", type=float, default=10.0, help="factor of the slow learner"
    )
    parser.add_argument(
        "--repeats", type=int, help="repeats of runs with a queue (default: 3, or 2)"
    )
    parser.add_argument("--quick", action="store_true", help="make one short run each")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args(cmd)
    if args.repeats is not None and args.repeats < 1:
        parser.error(f"--repeats: expected a positive number, not {args.repeats}")
    loop: Loop = importlib.import_module(LOOPS[args.loop]).LOOP
    repeats = 1 if args.quick else args.repeats or loop.repeats
    rows = loop.rows(args.slowdown, args.quick)
    measure_all(loop, rows, repeats)
    data = [
        {
            "run": row.label,
            "figures": [asdict(figures) for figures in row.found],
            "failure": row.failure,
        }
        for row in rows
    ]
    write_report(
        "straggler",
        args.quick,
        args.out,
        table(loop, rows),
        loop.caption(rows, how_often(repeats)),
        data,
        seeds=loop.seeds,
        repeats=repeats,
        variant="" if args.loop == "plain" else args.loop,
        arguments=cmd,
    )


if __name__ == "__main__":
    main()
