"""The benchmark measures what it costs to take a batch from the work queue.

Learners are real processes that share the rendezvous store. They take item after item
and sleep as long as a step may last. In turn with takes, the benchmark times bare
operations of the store, as a measure of the machine. Some runs have a learner that is
ten times slower; the others take more items in its place.

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
from report import how_often, spread, write_report

from espnet_distopt import Session, WorkQueue

STEP_SECONDS = 0.02
SLOWDOWN = 10
PER_NODE = 2
RUNS = (("adpsgd", 2), ("adpsgd", 4), ("adpsgd", 8), ("hadpsgd", 4), ("hadpsgd", 8))


def take(rank: int, algorithm: str, size: int, steps: int, slowdown: int) -> Any:
    """Take the items of an epoch as one learner.

    Args:
        rank: the learner.
        algorithm: the name of the algorithm.
        size: the number of learners.
        steps: the number of steps of each learner if all are equally fast.
        slowdown: how many times slower the last learner (or node) is.

    Returns:
        The seconds of each take, the seconds of each bare operation of the store, the
        number of items that this learner has taken, and the seconds of its epoch.
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
        watch = session.driver.watch
        assert watch is not None
        began, taken = time.perf_counter(), 0
        for step in itertools.count():
            # The first operation after a sleep takes longer, so takes and bare
            # operations alternate in being the first.
            if step % 2:
                adds.append(seconds_of(lambda: watch.store.add("bare", 1)))
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
    """Return the seconds that `operation` takes."""
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def measure(
    algorithm: str, size: int, steps: int, slowdown: int
) -> dict[str, float | str]:
    """Make one run, and return its figures, with times in microseconds."""
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
    """Return the lines of the table."""
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


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="make one short run each")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    repeats, steps = (1, 20) if args.quick else (5, 100)
    results = [
        measure(algorithm, size, steps, slowdown)
        for _ in range(repeats)
        for algorithm, size in RUNS
        for slowdown in (1, SLOWDOWN)
    ]
    caption = (
        f"Real processes run on one machine. A step sleeps {STEP_SECONDS} s, and a "
        f"learner makes {steps} steps if all are equally fast. A cell is "
        f"{how_often(repeats)}. A take is two operations of the "
        f"store; with hadpsgd (nodes of {PER_NODE}) one learner of a node takes and "
        "tells the others by a broadcast. The slowest is the last learner or the last "
        "node. `Ends apart` goes from the first learner that found the queue empty to "
        "the last, in steps of a fast learner."
    )
    data = {"step_seconds": STEP_SECONDS, "steps": steps, "results": results}
    write_report(
        "work_queue",
        args.quick,
        args.out,
        rows(results),
        caption,
        data,
        seeds=(),
        repeats=repeats,
    )


if __name__ == "__main__":
    main()
