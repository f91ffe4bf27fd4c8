"""The benchmark compares corrections of Adam's second moment where models are averaged.

Virtual learners train by Local SGD, each with Adam at the same learning rate. A rule of
`convergence/second_moments.py` replaces Adam's second moment by an estimate of the one
that the batch of all learners would have. The reference is one learner with the batch
of all, which is all-reduce. The report has the held-out loss of each rule, and its
difference from the reference, paired by seed: the same initial model and batches.

    FSDD=/path python benchmarks/second_moment.py --problem singles
    FSDD=/path python benchmarks/second_moment.py --problem pairs
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from convergence import digits, single_digits
from convergence.experiment import ENVIRONMENT, get_parser, start
from convergence.second_moments import RULES
from convergence.sweep import Result, Sweep
from convergence.training import ABOUT, PAIRS, SINGLES, Training, train
from report import write_report

PERIOD = 8
REFERENCE = "allreduce"
QUANTILES = {2: 4.303, 3: 3.182, 4: 2.776}
"""Degrees of freedom -> the quantile of Student's distribution that bounds 95 %."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The size of the experiment.

    Attributes:
        learners: the number of virtual learners.
        batch: the number of samples of a learner's step.
        samples: the number of samples of a training.
        lr: the learning rate of all trainings.
        rules: the rules to compare.
        seeds: the seeds.
    """

    learners: int
    batch: int
    samples: int
    lr: float
    rules: tuple[str, ...]
    seeds: tuple[int, ...]


FULL = {
    "singles": Comparison(
        learners=16,
        batch=4,
        samples=16_384,
        lr=0.001,
        rules=tuple(RULES),
        seeds=(0, 1, 2, 3, 4),
    ),
    "pairs": Comparison(
        learners=16,
        batch=8,
        samples=49_152,
        lr=0.003,
        rules=tuple(RULES),
        seeds=(0, 1, 2, 3, 4),
    ),
}
PROBLEMS = {"singles": (SINGLES, single_digits), "pairs": (PAIRS, digits)}


def cells(size: Comparison, problem: str) -> dict[str, list[Training]]:
    """Return the trainings of the reference and of each rule, one for each seed."""
    whole = Training(
        algorithm="allreduce",
        learners=1,
        batch=size.learners * size.batch,
        samples=size.samples,
        lr=size.lr,
        seed=0,
        optim="adam",
        problem=problem,
    )
    one = replace(
        whole,
        algorithm="local_sgd",
        learners=size.learners,
        batch=size.batch,
        options=(("period", PERIOD),),
    )
    rows = {REFERENCE: whole}
    rows |= {rule: replace(one, optim=f"adam, {rule}") for rule in size.rules}
    return {
        name: [replace(cell, seed=seed) for seed in size.seeds]
        for name, cell in rows.items()
    }


def relative(losses: Sequence[float], reference: Sequence[float]) -> str:
    """Return the mean relative difference of pairs, with its 95 % interval."""
    found = [100 * (x / y - 1) for x, y in zip(losses, reference, strict=True)]
    half = QUANTILES[len(found) - 1] * stdev(found) / math.sqrt(len(found))
    return f"{mean(found):+.1f} % ± {half:.1f}"


def table(rows: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| second moment | held-out loss | from all-reduce | loss in training | "
        "from all-reduce |",
        "| :-- | --: | --: | --: | --: |",
    ]
    for name, results in rows.items():
        columns = [name]
        for figure in ("held_out", "trained"):
            if any(each[figure] is None for each in (*results, *rows[REFERENCE])):
                columns += ["diverged", ""]
                continue
            losses = [float(each[figure]) for each in results]
            others = [float(each[figure]) for each in rows[REFERENCE]]
            columns.append(f"{mean(losses):.4f}")
            columns.append("" if name == REFERENCE else relative(losses, others))
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def main() -> None:
    """Run the trainings that have no result yet, and write the report."""
    parser = get_parser(__doc__)
    parser.add_argument("--problem", choices=FULL, default="singles")
    parser.add_argument("--seeds", type=int, choices=(3, 4, 5), default=5)
    args = parser.parse_args()
    size = replace(FULL[args.problem], seeds=tuple(range(args.seeds)))
    if args.quick:
        size = replace(size, learners=4, samples=512)
    key, problem = PROBLEMS[args.problem]
    sweep: Sweep = start("second_moment", args, problem.prepare, train)
    asked = cells(size, key)
    sweep.run(cell for row in asked.values() for cell in row)
    rows = {name: [sweep[cell] for cell in row] for name, row in asked.items()}
    caption = (
        f"Simulated: {size.learners} learners, {size.batch} samples in a learner's "
        f"step, {asked[REFERENCE][0].steps} steps; Local SGD with blocks of {PERIOD} "
        f"steps; Adam, learning rate {size.lr:g} in every training. {ABOUT}. "
        "Differences are paired by seed, with their 95 % intervals. "
        f"Problem: {problem.ABOUT}."
    )
    data: list[dict[str, Any]] = [
        {"rule": name, "seed": seed, **result}
        for name, results in rows.items()
        for seed, result in zip(size.seeds, results, strict=True)
    ]
    write_report(
        "second_moment",
        args.quick,
        args.out,
        table(rows),
        caption,
        data,
        seeds=size.seeds,
        repeats=1,
        variant=args.problem,
        environment=ENVIRONMENT,
    )


if __name__ == "__main__":
    main()
