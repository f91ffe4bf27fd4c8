"""What taking a batch from the work queue costs: real processes, over gloo's store.

Learners take item after item, and sleep for as long as a step may last. In turn with
takes, bare operations of the store are timed, as a measure of the machine. Some runs
have a learner that is ten times slower, whose items the others take.

    python benchmarks/work_queue.py          # four minutes; mostly idle
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from emulated.learners import Namespace, launch
from report import write_report

from espnet_distopt import Session, WorkQueue

STEP_SECONDS = 0.02
SLOWDOWN = 10
PER_NODE = 2
RUNS = (("adpsgd", 2), ("adpsgd", 4), ("adpsgd", 8), ("hadpsgd", 4), ("hadpsgd", 8))


def take(rank: int, algorithm: str, size: int, steps: int, slowdown: int) -> Any:
    """Take an epoch's items; return what takes and bare operations cost, in seconds.

    Also how many items were taken, and when the last step ended.
    """
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"per_node": PER_NODE} if algorithm == "hadpsgd" else {}
    slow = rank >= size - options.get("per_node", 1)
    seconds = STEP_SECONDS * (slowdown if slow else 1)
    takes, adds = [], []
    with Session(model, optimizer, algorithm, **options) as session:
        groups = size // options.get("per_node", 1)
        items = WorkQueue(session, steps * groups).read(lambda items: items)
        store = session.driver.store
        began, taken = time.perf_counter(), 0
        for step in itertools.count():
            # What comes first after the sleep costs more: each of them does in turn.
            if step % 2:
                adds.append(seconds_of(lambda: store.add("bare", 1)))
            start = time.perf_counter()
            if next(items, None) is None:
                break
            if step % 2 == 0:
                takes.append(time.perf_counter() - start)
            taken += 1
            time.sleep(seconds)
        lasted = time.perf_counter() - began
    return takes, adds, taken, lasted


def seconds_of(operation: Callable[[], object]) -> float:
    """Return how long `operation` takes."""
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def measure(
    algorithm: str, size: int, steps: int, slowdown: int
) -> dict[str, float | str]:
    """Return the figures of one run; times in microseconds."""
    args = (algorithm, size, steps, slowdown)
    results = launch([Namespace()] * size, take, *args, timeout=300)
    takes = [t for own, *_ in results for t in own]
    adds = [t for _, own, *_ in results for t in own]
    ends = [lasted for *_, lasted in results]
    return {
        "algorithm": algorithm,
        "learners": size,
        "slowdown": slowdown,
        "take": 1e6 * median(takes),
        "add": 1e6 * median(adds),
        "slowest_took": results[-1][2],
        "apart": (max(ends) - min(ends)) / STEP_SECONDS,
    }


def rows(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table: medians of the repeats, with the least and the largest."""
    lines = [
        "| algorithm | learners | slowest | a take, us | an operation, us | take / "
        "operation | items of the slowest | ends apart, steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys(
        (r["algorithm"], r["learners"], r["slowdown"]) for r in results
    )
    for algorithm, learners, slowdown in keys:
        same = [
            r
            for r in results
            if (r["algorithm"], r["learners"], r["slowdown"])
            == (algorithm, learners, slowdown)
        ]
        cells = [algorithm, str(learners), f"x{slowdown}"]
        cells += [spread([r[name] for r in same], ".0f") for name in ("take", "add")]
        cells.append(spread([r["take"] / r["add"] for r in same], ".1f"))
        cells.append(spread([r["slowest_took"] for r in same], ".0f"))
        cells.append(spread([r["apart"] for r in same], ".1f"))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def spread(values: Sequence[float], form: str) -> str:
    """Return the median, and the least and the largest."""
    return f"{median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    repeats, steps = (1, 20) if args.quick else (5, 100)
    results = [
        measure(algorithm, size, steps, slowdown)
        for _ in range(repeats)
        for algorithm, size in RUNS
        for slowdown in (1, SLOWDOWN)
    ]
    caption = (
        f"Real processes on one machine; a step is a sleep of {STEP_SECONDS} s, "
        f"{steps} steps a learner if all are equal; {repeats} interleaved repeats: "
        "median (least-largest). A take is two operations of the store; in hadpsgd "
        f"(nodes of {PER_NODE}), half of the learners wait for the other half's, and "
        "are told by a broadcast. The slowest is the last learner, or the last node. "
        "Ends apart: from the first learner that found the queue empty to the last, "
        "in steps of a fast one; no seed is used."
    )
    data = {"step_seconds": STEP_SECONDS, "steps": steps, "results": results}
    write_report("work_queue", args.quick, args.out, rows(results), caption, data)


if __name__ == "__main__":
    main()
