"""The benchmark measures the load of many learners' heartbeats on the rendezvous store.

N learners, spread over a few processes, send real heartbeats to one store, whose
process does nothing else. The benchmark reports the operations per second, the share of
one core that the store's process takes, and how long an operation of another client
takes, both before the heartbeats begin and during them.

    python benchmarks/heartbeats.py          # two minutes
"""

import argparse
import multiprocessing
import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist
from report import write_report

from espnet_distopt.distributed.liveness import BEAT, Liveness

PROCESSES = 8
SECONDS = 10.0
SIZES = (16, 64, 256)


def connect(port: int) -> Any:
    """Return a connection to the store on port `port` of this machine."""
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(minutes=5),
    )


def keep_store(pipe: Connection) -> None:
    """Keep a store, and answer each message with the processor seconds so far."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    while pipe.recv():
        times = os.times()
        pipe.send(times.user + times.system)


def beat(port: int, ranks: range, size: int, pipe: Connection) -> None:
    """Send the heartbeats of some learners until a message comes.

    Args:
        port: the port of the store.
        ranks: the learners of this process.
        size: the number of all learners.
        pipe: the pipe of the messages; the process sends the number of its learners
            when they have begun, and the reason if one of them has lost another.
    """
    store = connect(port)
    learners = [Liveness(store, rank, size) for rank in ranks]
    pipe.send(len(learners))
    pipe.recv()
    lost = [learner.lost for learner in learners if learner.lost is not None]
    pipe.send(lost[:1])


def latency(store: Any, seconds: float) -> float:
    """Return the median seconds of an addition to the store.

    Args:
        store: the store.
        seconds: for how many seconds to add, a hundred times per second.
    """
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        store.add("bare", 1)
        took.append(time.perf_counter() - start)
        time.sleep(0.01)
    return median(took)


def measure(size: int, seconds: float) -> dict[str, Any]:
    """Return the figures of `size` learners, measured over `seconds` seconds."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    keeper = context.Process(target=keep_store, args=(there,), daemon=True)
    keeper.start()
    port = here.recv()
    store = connect(port)
    alone = latency(store, 1.0)
    pipes = []
    for number in range(PROCESSES):
        mine, theirs = context.Pipe()
        ranks = range(number, size, PROCESSES)
        args = (port, ranks, size, theirs)
        context.Process(target=beat, args=args, daemon=True).start()
        pipes.append(mine)
    assert sum(pipe.recv() for pipe in pipes) == size
    time.sleep(3 * BEAT)
    here.send(True)
    before, start = here.recv(), time.perf_counter()
    beside = latency(store, seconds)
    here.send(True)
    share = (here.recv() - before) / (time.perf_counter() - start)
    for pipe in pipes:
        pipe.send(True)
    lost = [reason for pipe in pipes for reason in pipe.recv()]
    keeper.kill()
    return {
        "learners": size,
        "operations_a_second": 2 * size / BEAT,
        "one_by_one": size * (size - 1) / BEAT,
        "share_of_a_core": share,
        "alone_us": alone * 1e6,
        "beside_us": beside * 1e6,
        "lost": lost,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| learners | operations a second | if each asked for each | share of a core "
        "| an addition alone | beside them |",
        "| --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row['learners']} | {row['operations_a_second']:.0f} "
        f"| {row['one_by_one']:.0f} | {100 * row['share_of_a_core']:.1f} % "
        f"| {row['alone_us']:.0f} us | {row['beside_us']:.0f} us |"
        for row in rows
    ]
    return lines


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure for a second")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    sizes, seconds = (SIZES[:1], 1.0) if args.quick else (SIZES, SECONDS)
    rows = [measure(size, seconds) for size in sizes]
    assert not any(row["lost"] for row in rows), rows
    caption = (
        f"N learners in {PROCESSES} processes send a heartbeat every {BEAT:g} s, on "
        f"the machine of the store, for {seconds:g} s. The share of a core is that of "
        "the store's process. The time of another client's addition is the median of "
        "all additions in this time."
    )
    write_report(
        "heartbeats",
        args.quick,
        args.out,
        table(rows),
        caption,
        rows,
        seeds=(),
        repeats=1,
    )


if __name__ == "__main__":
    main()
