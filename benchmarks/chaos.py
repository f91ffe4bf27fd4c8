"""The benchmark torments a training, and measures what that costs and what it breaks.

Eight learners train a small network by adpsgd in a plain loop with a session, under
`espnet_distopt.bin.launch` with restarts. A tormentor injects faults that a seed
chooses. Steps sleep in place of an accelerator, because two cores cannot compute for
eight learners; everything else is real. `faults/figures.py` defines the figures.

    python benchmarks/chaos.py --case kills              # an hour: 200 kills
    python benchmarks/chaos.py --case kills --kills 20   # ten minutes
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from faults.cases import Plan, torment
from faults.figures import Notes, summary

from espnet_distopt.errors import one_line_errors
from espnet_distopt.files.writing import write_json


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the cases, print the tables and write them to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", default="kills")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--every", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", type=float, default=30.0)
    parser.add_argument("--work", type=Path, help="folder of the learners' notes")
    args = parser.parse_args(cmd)
    work = args.work or Path(tempfile.mkdtemp(prefix="chaos-"))
    plan = Plan(count=args.kills, every=args.every, seed=args.seed, calm=args.calm)
    torment(work, plan)
    figures = summary(Notes(work))
    write_json(work / "figures.json", figures)
    print({k: v for k, v in figures.items() if k != "wounds"})


if __name__ == "__main__":
    main()
