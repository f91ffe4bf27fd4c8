"""The benchmark times the laboratory against the simulation, with 64 learners.

Both make the same trainings, which take turns. What only AD-PSGD needs, the record of a
schedule, is timed by itself, because trainings at other rates share it.

    FSDD=/path python benchmarks/laboratory_speed.py          # four minutes
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from convergence import stream_problems, training
from convergence.training import Training
from laboratory import run, schedules
from report import how_often, spread, write_report

LEARNERS, STEPS, REPEATS = 64, 50, 3
OPTIMIZERS = {"sgd": 0.02, "adam": 0.001}
METHODS: dict[str, dict[str, Any]] = {
    "adpsgd": {"topology": "random"},
    "dpsgd": {"topology": "randomized_ring"},
    "local_sgd": {"period": 8},
    "bmuf_adam": {"period": 8},
    "adasum": {},
}


def seconds_of(function: Callable[..., Any], *args: Any) -> float:
    """Return the seconds of the processor that a call takes."""
    began = time.process_time()
    function(*args)
    return time.process_time() - began


def measure(cell: Training, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of both, and of the record of a schedule."""
    found: dict[str, list[float]] = {"simulation": [], "laboratory": [], "schedule": []}
    for seed in range(repeats):
        own = replace(cell, seed=seed)
        problem = stream_problems.problem("digits", seed)
        # The samples, which both share, are drawn before.
        problem.read(0, cell.samples)
        if own.algorithm in run.GOSSIP:
            found["schedule"].append(seconds_of(run.recorded, own))
        found["simulation"].append(seconds_of(training.simulate, own, problem))
        found["laboratory"].append(seconds_of(run.compute, [own]))
    return found


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fsdd", type=Path, default=os.environ.get("FSDD"))
    parser.add_argument("--quick", action="store_true", help="make few steps")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    if args.fsdd is None:
        raise SystemExit("error: set FSDD=/path/to/free-spoken-digit-dataset")
    torch.set_num_threads(1)
    stream_problems.prepare(args.fsdd)
    steps, repeats = (2, 1) if args.quick else (STEPS, REPEATS)
    lines = [
        "| method | optimizer | simulation, s | laboratory, s | times as fast "
        "| a schedule, s |",
        "| :-- | :-- | --: | --: | --: | --: |",
    ]
    data: dict[str, Any] = {}
    for algorithm, options in METHODS.items():
        for optim, lr in OPTIMIZERS.items():
            cell = Training(
                algorithm=algorithm, learners=LEARNERS, batch=4,
                samples=steps * LEARNERS * 4, lr=lr, seed=0, optim=optim,
                problem="digits", options=tuple(options.items()),
            )  # fmt: skip
            measure(replace(cell, samples=LEARNERS * 4), 1)
            schedules.record.cache_clear()
            found = data[f"{algorithm} {optim}"] = measure(cell, repeats)
            pairs = zip(found["simulation"], found["laboratory"], strict=True)
            ratio = median(slow / fast for slow, fast in pairs)
            of_schedule = found["schedule"]
            lines.append(
                f"| {algorithm} | {optim} | {spread(found['simulation'], '.2f')} | "
                f"{spread(found['laboratory'], '.2f')} | {ratio:.1f} | "
                f"{spread(of_schedule, '.2f') if of_schedule else ''} |"
            )
            print(lines[-1], flush=True)
    caption = (
        f"Trainings of {LEARNERS} learners with {steps} steps of 4 samples each: "
        f"{how_often(repeats)}, in seconds of the processor. Both have the learners' "
        "set-up and the loss over the held-out samples in them, and neither has the "
        f"drawing of samples. The problem is {stream_problems.TASKS['digits'].about}."
    )
    write_report(
        "laboratory_speed",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=list(range(repeats)),
        repeats=1,
        environment="FSDD=/path/to/free-spoken-digit-dataset",
    )


if __name__ == "__main__":
    main()
