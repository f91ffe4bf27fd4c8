"""How much a slow learner slows a fast one: two processes, one sleeps in its data.

Both train the same BLSTM on random frames. For each algorithm, learner 0's steps per
second are measured twice: beside a learner 1 that is equally fast, and beside one that
sleeps before each batch so that it is ten times slower. The ratio of the two is what
the straggler leaves of learner 0's speed. All within one epoch.

    python benchmarks/straggler.py          # two minutes; two cores, one a learner
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from espnet_distopt import Session

RESULTS = Path(__file__).parent / "results" / "straggler"
STEPS = 200
WARM_UP = 10


def measure(rank: int, algorithm: str, slowdown: float, folder: str) -> None:
    """Train as learner `rank`; learner 0 writes its steps per second."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    model = nn.LSTM(40, 64, bidirectional=True, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters())
    # A learner that is k times slower has k times fewer batches to go through. What
    # steps together (allreduce) has as many.
    asynchronous = algorithm == "adpsgd"
    share = (int(slowdown) if rank else 1) if asynchronous else 4
    steps = STEPS // share
    pause = 0.0
    with Session(model, optimizer, algorithm) as session:
        began = time.perf_counter()
        for step in range(-WARM_UP, steps):
            if step == 0:
                pause = (slowdown - 1) * (time.perf_counter() - began) / WARM_UP
                session.driver.meet()
                began = time.perf_counter()
            if rank == 1:
                time.sleep(pause if step >= 0 else 0)
            x = torch.randn(16, 50, 40)
            optimizer.zero_grad()
            model(x)[0].square().mean().backward()
            optimizer.step()
            session.step()
        rate = steps / (time.perf_counter() - began)
        figures = session.algorithm.metrics()
        session.finish()
    if rank == 0:
        result = {"steps_per_second": rate, "exchanges": figures.get("exchanges", 0)}
        (Path(folder) / "rate.json").write_text(json.dumps(result))


def rate_of(algorithm: str, slowdown: float) -> dict[str, float]:
    """Return learner 0's figures beside a learner 1 that is `slowdown` times slower."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (algorithm, slowdown, folder), nprocs=2)
        result: dict[str, float] = json.loads((Path(folder) / "rate.json").read_text())
        return result


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slowdown", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for algorithm in ("adpsgd", "allreduce"):
        pairs = [
            [rate_of(algorithm, s)["steps_per_second"] for s in (1.0, args.slowdown)]
            for _ in range(args.repeats)
        ]
        ratios = sorted(slowed / even for even, slowed in pairs)
        rows.append({"algorithm": algorithm, "pairs": pairs, "ratios": ratios})
    lines = [
        "| algorithm | steps/s beside an equal learner | beside one "
        f"{args.slowdown:g} times slower | ratio, median (min - max) |",
        "|---|---|---|---|",
    ]
    for row in rows:
        even, slowed = (sorted(column) for column in zip(*row["pairs"], strict=True))
        middle, ratios = len(even) // 2, row["ratios"]
        lines.append(
            f"| {row['algorithm']} | {even[middle]:.1f} | {slowed[middle]:.1f} | "
            f"{ratios[middle]:.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f}) |"
        )
    about = (
        f"{platform.machine()}, torch {torch.__version__}, 2 processes, gloo; "
        f"learner 0 of a run of {STEPS} steps, {args.repeats} pairs of runs."
    )
    table = "\n".join([*lines, "", about, "Command: `python benchmarks/straggler.py`"])
    print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.with_suffix(".md").write_text(table + "\n")
    RESULTS.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
