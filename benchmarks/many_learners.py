"""The benchmark runs many learners of a tiny model, as real processes on one machine.

It looks for what breaks first when learners become many: the start, the end of an
epoch, the rendezvous store, or the memory of a process. A step sleeps, because a few
cores cannot compute for so many. Gossip takes its batches from the work queue.

    python benchmarks/many_learners.py          # four minutes
"""

import argparse
import re
import threading
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

import torch
from emulated.learners import LearnersFailedError, Namespace, launch
from report import write_report
from torch import nn
from torch.optim import Adam

from espnet_distopt import Session, WorkQueue

SEED = 0
SIZES = (16, 32, 64)
STEPS = 24
STEP_SECONDS = 0.5
METHODS: dict[str, dict[str, Any]] = {
    "allreduce": {},
    "adpsgd": {},
    "hadpsgd": {"per_node": 8},
    "bmuf_adam": {"period": 8},
}


def learner(rank: int, name: str, steps: int) -> dict[str, float]:
    """Train one learner for two epochs; return when what happened, and its memory.

    Args:
        rank: the learner.
        name: the name of the algorithm.
        steps: the number of steps of a learner in an epoch.
    """
    torch.manual_seed(SEED)
    began = time.time()
    model = nn.Linear(100, 20)
    optimizer = Adam(model.parameters())
    with Session(model, optimizer, name, **METHODS[name]) as session:
        opened = time.time()
        first = last = ended = opened
        for _ in range(2):
            first = time.time()
            for _batch in _batches(session, steps):
                session.begin_batch(1)
                optimizer.zero_grad()
                time.sleep(STEP_SECONDS)
                model(torch.ones(1, 100)).sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                session.step()
                last = time.time()
            with session.consensus():
                ended = time.time()
        memory = proportional_memory()
    return {
        "open": opened - began,
        "first": first,
        "last": last,
        "ended": ended,
        "memory": memory,
    }


def _batches(session: Session, steps: int) -> Any:
    if not session.algorithm.wants_gossip:
        return range(steps)
    groups = session.learner.size // len(session.algorithm.lockstep(session.learner))
    return WorkQueue(session, steps * groups).read(lambda items: items)


def proportional_memory() -> float:
    """Return this process's memory, with its share of what processes share (bytes)."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return 1024 * float(found[1])


class StoreTime:
    """Samples the processor time of this process, which serves the store."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._spent: list[float] = []
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            self._times.append(time.time())
            self._spent.append(time.process_time())
            time.sleep(0.1)

    def share(self, start: float, stop: float) -> float:
        """Return the processor seconds in a second between two times."""
        first, last = (bisect_left(self._times, t) for t in (start, stop))
        last = min(last, len(self._times) - 1)
        wall = self._times[last] - self._times[first]
        return (self._spent[last] - self._spent[first]) / wall


def measure(name: str, size: int, steps: int, store: StoreTime) -> dict[str, float]:
    """Run `size` learners; return the figures of a row."""
    places = [Namespace()] * size
    found = launch(places, learner, name, steps, timeout=300)
    first = min(each["first"] for each in found)
    last = max(each["last"] for each in found)
    return {
        "open": max(each["open"] for each in found),
        "step": (last - first) / steps,
        "end": max(each["ended"] for each in found) - last,
        "store": store.share(first, last),
        "memory": max(each["memory"] for each in found),
    }


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use few learners")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    sizes, steps = ((8,), 2) if args.quick else (SIZES, STEPS)
    lines = [
        "| algorithm | learners | opening the session, s | a step, of its sleep "
        "| end of the epoch, s | the store, of a core | memory of a process, MB |",
        "| :-- |" + " --: |" * 6,
    ]
    data: dict[str, Any] = {}
    store = StoreTime()
    for name in METHODS:
        for size in sizes:
            title = f"| {name} | {size} |"
            try:
                found = measure(name, size, steps, store)
            except LearnersFailedError as error:
                data[f"{name} {size}"] = str(error)
                lines.append(f"{title} {error} |")
                print(lines[-1], flush=True)
                continue
            data[f"{name} {size}"] = found
            lines.append(
                f"{title} {found['open']:.1f} | {found['step'] / STEP_SECONDS:.2f} | "
                f"{found['end']:.2f} | {100 * found['store']:.1f} % | "
                f"{found['memory'] / 1e6:.0f} |"
            )
            print(lines[-1], flush=True)
    caption = (
        "The learners are processes on one machine, with gloo over the loopback. The "
        f"model has 2,020 parameters; a step sleeps {STEP_SECONDS} s, and a learner "
        f"makes {steps} steps in an epoch, of which the second one is measured. A "
        "step's time is that of the epoch from the first learner's begin to the last "
        "one's last step, over the steps of a learner. The end of the epoch is from "
        "there until all have the consensus model. The store is a process of its own; "
        "its share of a core is that during the steps. Memory counts what processes "
        "share by its parts. hadpsgd has 8 learners per node."
    )
    write_report(
        "many_learners",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=[SEED],
        repeats=1,
    )


if __name__ == "__main__":
    main()
