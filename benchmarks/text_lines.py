"""The benchmark tries options of text-line recipes on mini_ocr, seed by seed.

A method is a change of the training, or a search of the texts. All trainings are those
of one process (stock ESPnet); the recipe's model is made smaller and converges in three
epochs, the last of which is decoded. With equal seeds the order of batches is equal,
and so is the initial model where a method adds no parameters. The table has the
differences from the reference by seed, with the 95 % interval of their mean. The
options of a search are chosen on the development set.

    egs/mini_ocr/ocr1/run.sh --stop_stage 10     # 2 minutes
    python benchmarks/text_lines.py              # 5 minutes for each training
    python benchmarks/text_lines.py --report     # only the table of what is done

The result of each training is a line of results/text_lines.jsonl, with its commit. A
training that has a line is not run again, and one that was stopped goes on from its
last epoch. The trained models stay in build/text_lines.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lines.methods import METHODS, SEEDS
from lines.results import Results
from lines.runs import BUILD, run
from lines.table import CAPTION, table
from report import ROOT, write_report

from espnet_distopt.errors import one_line_errors

RESULTS = ROOT / "benchmarks/results"


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run what has no result yet, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", action="store_true", help="only write the table")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="methods whose name has this in it"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results")
    args = parser.parse_args(cmd)
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    results = Results(args.out / "text_lines.jsonl")
    chosen = [] if args.report else METHODS
    for method in chosen:
        for seed in SEEDS if re.search(args.only, method.name) else ():
            results.read()
            if (method, seed) not in results:
                print(f"{method.name}, seed {seed}", file=sys.stderr, flush=True)
                results.add(method, seed, run(method, seed, BUILD))
    results.read()
    found = {
        method.name: {s: results[method, s] for s in SEEDS if (method, s) in results}
        for method in METHODS
    }
    figures = {name: by_seed for name, by_seed in found.items() if by_seed}
    write_report(
        "text_lines",
        False,
        args.out,
        table(figures),
        CAPTION,
        figures,
        seeds=SEEDS,
        repeats=1,
        arguments=[],
    )


if __name__ == "__main__":
    main()
