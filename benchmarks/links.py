"""What slow links cost: four machines in miniature, every kind of method, peers.

Each learner has a network namespace of its own and a link with a rate. Forward and
backward are emulated by sleep, since two cores cannot compute for four learners; the
optimizer's step, and all that a method does with the parameters, is real. A method's
seconds a step are divided by those of the same loop without any communication, with the
same optimizer, on as many processes: the median of its repeats, between the others.

    python benchmarks/links.py --rate 1000      # as root; 15 minutes
    python benchmarks/links.py --rate 100       # 40 minutes
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

import torch
import torch.distributed as dist
from emulated.emulated import Emulated
from emulated.learners import LearnersFailedError, Namespace, launch
from emulated.link_cases import FULL, LEARNERS, QUICK, Case, Size
from emulated.methods import MeasuredMethod, begin
from emulated.namespaces import network
from report import write_report

from espnet_distopt.errors import one_line_errors


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one learner does: so many steps, after some that do not count."""

    method: MeasuredMethod
    size: Size
    warm_up: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class LinkFigures:
    """Per step, the means over the learners: seconds, of the CPU, and exchanges."""

    seconds: float
    cpu: float
    exchanges: float


@dataclass(kw_only=True)
class LinkRow:
    """A case and its measurements, or why there are none."""

    case: Case
    found: list[LinkFigures] = field(default_factory=list)
    failure: str | None = None


def measure(rank: int, what: Measurement) -> LinkFigures:
    """Train as learner `rank`."""
    model = Emulated(what.size.parameters, what.size.seconds, rank)
    training = begin(what.method, model)
    dist.barrier()
    for _ in range(what.warm_up):
        training.step()
    before = training.exchanges()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(what.steps):
        training.step()
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    exchanges = training.exchanges() - before
    dist.barrier()  # nobody hangs up on others; what is under way is left undone
    return LinkFigures(
        seconds=seconds / what.steps,
        cpu=cpu / what.steps,
        exchanges=exchanges / what.steps,
    )


def reached(rank: int) -> float:
    """Return the Mbit/s at which learner 0 gets 20 MB to learner 1, as that sees it."""
    tensor = torch.zeros(5_000_000)
    dist.barrier()
    began = time.perf_counter()
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
    return tensor.nbytes * 8e-6 / (time.perf_counter() - began)


def planned(case: Case, size: Size, rate: int) -> Measurement:
    """Return how long to measure: whole periods, or some exchanges."""
    sending = size.link_seconds(case.models, rate)
    if case.gossips:
        steps = round((size.least + 2 * sending) / size.seconds)
        return Measurement(method=case.method, size=size, warm_up=3, steps=steps)
    period = case.period * size.seconds + sending
    periods = max(2 if case.period == 1 else 1, round(size.least / period))
    # The first block's end gets memory from the system, and so does, of what is
    # delayed, the second's, when the first average has come.
    warm_up = 2 if "delay" in case.method.options else 1
    return Measurement(
        method=case.method,
        size=size,
        warm_up=case.period * warm_up,
        steps=case.period * periods,
    )


def figures(
    places: Sequence[Namespace], case: Case, size: Size, rate: int
) -> LinkFigures:
    """Return the means over the learners.

    Raises:
        LearnersFailedError: the method has failed.
    """
    what = planned(case, size, rate)
    each = size.seconds + size.link_seconds(case.models, rate) / case.period
    timeout = 60 + 4 * each * (what.warm_up + what.steps)
    found = launch(places, measure, what, timeout=timeout)
    return LinkFigures(
        seconds=fmean(f.seconds for f in found),
        cpu=fmean(f.cpu for f in found),
        exchanges=fmean(f.exchanges for f in found),
    )


def measure_all(places: Sequence[Namespace], size: Size, rate: int) -> list[LinkRow]:
    """Measure every case; repeats are interleaved."""
    rows = [LinkRow(case=c, failure=c.method.missing()) for c in size.cases()]
    for repeat in range(size.repeats):
        for row in rows:
            if row.failure or repeat >= row.case.repeats:
                continue
            label = f"{rate} Mbit/s, {row.case.method.label}"
            try:
                row.found.append(figures(places, row.case, size, rate))
                print(f"{label}: {row.found[-1]}", flush=True)
            except LearnersFailedError as error:
                row.failure = str(error)
                print(f"{label}: {row.failure}", flush=True)
    return rows


def table(rows: Sequence[LinkRow], size: Size, rate: int) -> list[str]:
    """Return the lines of the table of one rate."""
    lines = [
        f"| {rate} Mbit/s | s a step | over no communication, median (min - max) | "
        "by its bytes | exchanges a step | CPU s a step |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    alone = {
        row.case.method.adam: [f.seconds for f in row.found]
        for row in rows
        if row.case.method.name == "none"
    }
    for row in rows:
        if row.failure or not alone[row.case.method.adam]:
            lines.append(f"| {row.case.method.label} | {row.failure} |")
        else:
            lines.append(_line(row, alone[row.case.method.adam], size, rate))
    return lines


def _line(row: LinkRow, alone: list[float], size: Size, rate: int) -> str:
    case, found = row.case, row.found
    bare = median(alone)
    ratios = [f.seconds / bare for f in found]
    sending = size.link_seconds(case.models, rate) / case.period
    least = max(bare, sending) if case.beside else bare + sending
    if case.gossips:
        least = bare
    exchanges = median(f.exchanges for f in found)
    cells = [
        case.method.label,
        f"{median(f.seconds for f in found):.3f}",
        f"{median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})",
        f"{least / bare:.2f}",
        f"{exchanges:.3f}" if exchanges else "",
        f"{median(f.cpu for f in found):.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _caption(size: Size, rate: int, found: float) -> str:
    return (
        f"{LEARNERS} processes on {os.cpu_count()} cores, each in a network namespace "
        f"of its own, gloo; links shaped by tbf in both directions ({found:.0f} of "
        f"{rate} Mbit/s reached by one send). A model of "
        f"{size.parameters / 1e6:.3g} million parameters in float32. Forward and "
        f"backward are emulated: they sleep {size.seconds} s and find their "
        "gradients. The optimizer's step is real, SGD but where Adam is "
        "named, as is all that a method does with parameters and gradients: that is "
        "work of the memory, on cores that all learners share, and the loop without "
        "communication has none but the optimizer's. By its bytes: the ratio if "
        "nothing but the link took time, from the bytes that each learner sends (of "
        "what sends beside the computation, the longer of both; gossip waits for no "
        "link). An exchange a step is one of each learner, of those that average when "
        "they can. CPU: of the learner's process, all its threads, without the "
        "kernel's part of the network."
    )


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Measure, print the tables and write them to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="of the links, Mbit/s")
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args(cmd)
    if args.rate < 1:
        parser.error(f"--rate: expected a positive number, not {args.rate}")
    size, rate = QUICK if args.quick else FULL, args.rate
    with network(LEARNERS, rate) as places:
        found = launch(places, reached, timeout=60)[1]
        rows = measure_all(places, size, rate)
    write_report(
        "links",
        args.quick,
        args.out,
        table(rows, size, rate),
        _caption(size, rate, found),
        {
            row.case.method.label: row.failure or [asdict(f) for f in row.found]
            for row in rows
        },
        options={"rate": rate},
    )


if __name__ == "__main__":
    main()
