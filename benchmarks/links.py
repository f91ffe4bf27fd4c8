"""The benchmark measures what slow links cost each kind of method, and the peers.

Each of four learners has a network namespace of its own, whose link has a limited rate.
The forward and backward passes are emulated by sleep, because two cores cannot compute
for four learners. The optimizer's step is real, and so is all that a method does with
the parameters. So that they do not all do it at the same time, the learners begin one
after the other, in equal parts of a step. The baseline is the same loop without
communication, with the same optimizer and as many processes; it is measured in turn
with the methods. The benchmark reports a method's seconds per step relative to the
median of the baseline.

    python benchmarks/links.py --rate 1000      # as root; 15 minutes
    python benchmarks/links.py --rate 100       # 40 minutes
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from emulated.learners import LearnersFailedError, Namespace, launch
from emulated.methods import Emulated, MeasuredMethod, begin
from emulated.namespaces import network
from report import how_often, spread, write_report

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.errors import one_line_errors

LEARNERS = 4
ALL_REDUCE = 2 * (LEARNERS - 1) / LEARNERS
"""How many times its size each learner sends in an all-reduce of a model."""

BLOCKS = ("local_sgd", "bmuf_adam", "PostLocalSGD", "fairscale SlowMo", "hivemind")
"""The methods that synchronize every `period` steps."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method, and what it sends.

    Attributes:
        method: the method.
        period: the number of steps between two synchronizations.
        models: what each learner sends in a period (with gossip: in an exchange), as a
            multiple of the model's size in float32.
        beside: whether the method sends while it computes.
        repeats: the number of measurements.
    """

    method: MeasuredMethod
    period: int = 1
    models: float = 0.0
    beside: bool = False
    repeats: int = 1

    @property
    def gossips(self) -> bool:
        """Whether the method exchanges as often as the link allows."""
        return self.method.name in ("adpsgd", "bare TCP")


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the measurement.

    Attributes:
        parameters: the number of the model's parameters.
        seconds: the seconds of a forward and a backward pass together.
        least: the least seconds that a measurement takes.
        repeats: the largest number of measurements of a method.
        names: the names of the methods to measure; None measures all.
    """

    parameters: int
    seconds: float
    least: float
    repeats: int = 3
    names: Sequence[str] | None = None

    def link_seconds(self, models: float, rate: int) -> float:
        """Return the seconds that a link takes to send models.

        Args:
            models: how many models; the number need not be whole.
            rate: the rate of the link, in Mbit/s.
        """
        return models * self.parameters * 32 / (rate * 1e6)

    def cases(self) -> list[Case]:
        """Return the cases to compare; those without communication come first."""
        found = [*_alone(), *_gossip(), *_every_step(), *_in_blocks()]
        return [c for c in found if self.names is None or c.method.name in self.names]


FULL = Size(parameters=35_000_000, seconds=0.3, least=6.0)
QUICK = Size(
    parameters=2_000_000,
    seconds=0.05,
    least=0.5,
    repeats=1,
    names=("none", "bare TCP", "adpsgd", "local_sgd", "DDP"),
)


def _alone() -> list[Case]:
    return [
        Case(method=MeasuredMethod(name="none", adam=adam), repeats=3)
        for adam in (False, True)
    ]


def _gossip() -> list[Case]:
    # An exchange may take longer than 16 steps, the default after which training waits.
    patient = {"max_staleness": 1000}
    options: list[dict[str, Any]] = [{}, patient]
    if _knows("adpsgd", "exchange"):
        options.append({**patient, "exchange": "bfloat16"})
    limit = MeasuredMethod(name="bare TCP")
    return [
        Case(method=limit, models=1.0, beside=True, repeats=3),
        *[
            Case(
                method=MeasuredMethod(name="adpsgd", options=chosen),
                models=0.5 if "exchange" in chosen else 1.0,
                beside=True,
                repeats=3,
            )
            for chosen in options
        ],
    ]


def _every_step() -> list[Case]:
    models = {
        "allreduce": ALL_REDUCE,
        "adasum": ALL_REDUCE,
        "DDP": ALL_REDUCE,
        "decent-dp": 1.0,  # It makes an all-reduce of two learners.
    }
    return [
        Case(
            method=MeasuredMethod(name=name),
            models=sent,
            beside=name in ("allreduce", "DDP", "decent-dp"),
            repeats=3 if name in ("allreduce", "DDP") else 1,
        )
        for name, sent in models.items()
    ]


def _in_blocks() -> list[Case]:
    return [
        Case(
            method=MeasuredMethod(name=name, options=options, adam=name == "bmuf_adam"),
            period=options["period"],
            # BMUF-Adam averages Adam's two moments, too.
            models=ALL_REDUCE
            * (3 if name == "bmuf_adam" else 1)
            / (2 if "exchange" in options else 1),
            beside="delay" in options or name == "hivemind",
            repeats=3 if "delay" in options else 1,
        )
        for name in BLOCKS
        for options in _block_options(name)
    ]


def _block_options(name: str) -> list[dict[str, Any]]:
    if name == "hivemind":  # It needs seconds to find a group, so blocks must be long.
        return [{"period": 32}]
    options = [{"period": 8}]
    if name in ALGORITHMS:
        options.append({"period": 32})
        if _knows(name, "delay"):
            options.append({"period": 32, "delay": 31})
            if name == "bmuf_adam":
                options.append({**options[-1], "exchange": "bfloat16"})
            options.append({"period": 32, "delay": 3, "fragments": 8})
    return options


def _knows(algorithm: str, option: str) -> bool:
    """Return whether the algorithm has the option."""
    return option in {field.name for field in fields(ALGORITHMS[algorithm].config)}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The task of one learner.

    Attributes:
        method: the method.
        size: the size of the measurement.
        warm_up: the number of steps that do not count.
        steps: the number of steps that count.
    """

    method: MeasuredMethod
    size: Size
    warm_up: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class LinkFigures:
    """The figures of a step, averaged over the learners.

    Attributes:
        seconds: the seconds of a step.
        cpu: the processor seconds of a step, over all threads of the learner.
        exchanges: how often a learner averages with others in a step.
    """

    seconds: float
    cpu: float
    exchanges: float


@dataclass(kw_only=True)
class LinkRow:
    """A case and its measurements.

    Attributes:
        case: the case.
        found: the figures of each repeat.
        failure: the reason why there are no figures, or None.
    """

    case: Case
    found: list[LinkFigures] = field(default_factory=list)
    failure: str | None = None


def measure(rank: int, what: Measurement) -> LinkFigures:
    """Train as learner `rank`, and return this learner's figures."""
    model = Emulated(what.size.parameters, what.size.seconds, rank)
    training = begin(what.method, model)
    _take_turns(rank, what.size)
    for _ in range(what.warm_up):
        training.step()
    # In the warm-up the system gives memory, which takes some learners longer than
    # others, and slows down all that share the machine.
    _take_turns(rank, what.size)
    before = training.exchanges()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(what.steps):
        training.step()
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    exchanges = training.exchanges() - before
    # The learner waits for the others before it closes its connections. Communication
    # that is still under way is given up.
    dist.barrier()
    return LinkFigures(
        seconds=seconds / what.steps,
        cpu=cpu / what.steps,
        exchanges=exchanges / what.steps,
    )


def _take_turns(rank: int, size: Size) -> None:
    """Wait for all learners, so that they begin in equal parts of a step."""
    dist.barrier()
    time.sleep(rank * size.seconds / LEARNERS)


def reached(rank: int) -> float:
    """Return the Mbit/s at which 20 MB travel from learner 0 to learner 1.

    Only the figure of learner 1 is meaningful, as it waits until it has all of them.
    """
    tensor = torch.zeros(5_000_000)
    dist.barrier()
    began = time.perf_counter()
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
    return tensor.nbytes * 8e-6 / (time.perf_counter() - began)


def planned(case: Case, size: Size, rate: int) -> Measurement:
    """Return the task of a learner: it measures whole periods, or some exchanges."""
    sending = size.link_seconds(case.models, rate)
    if case.gossips:
        steps = round((size.least + 2 * sending) / size.seconds)
        # The first exchange allocates memory.
        warm_up = 3 + round(sending / size.seconds)
        return Measurement(method=case.method, size=size, warm_up=warm_up, steps=steps)
    period = case.period * size.seconds + sending
    periods = max(2 if case.period == 1 else 1, round(size.least / period))
    # The system gives memory at the end of the first block. With a delay it gives more
    # at the end of the second block, after the first average has come.
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
    """Measure a case once, and return the means over the learners.

    Args:
        places: the place of each learner.
        case: the case.
        size: the size of the measurement.
        rate: the rate of the links, in Mbit/s.

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
    """Measure every case, with interleaved repeats."""
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
    """Return the lines of the table; `rate` is that of the links, in Mbit/s."""
    lines = [
        f"| {rate} Mbit/s | s a step | over no communication | "
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
        spread(ratios, ".3f"),
        f"{least / bare:.2f}",
        f"{exchanges:.3f}" if exchanges else "",
        f"{median(f.cpu for f in found):.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _caption(size: Size, rate: int, found: float) -> str:
    return (
        f"{LEARNERS} processes on {os.cpu_count()} cores use gloo, each in a network "
        "namespace of its own; tbf limits the links in both directions (one send "
        f"reached {found:.0f} of {rate} Mbit/s). The model has "
        f"{size.parameters / 1e6:.3g} million parameters in float32. The forward and "
        f"backward passes are emulated: they sleep {size.seconds} s, and the gradients "
        "are there. The optimizer's step is real (SGD, or Adam where it is named), and "
        "so is all that a method does with parameters and gradients. This is work for "
        "the memory, on cores that all learners share; the loop without communication "
        "has only the optimizer's. The learners begin a quarter of a step after each "
        "other, so that those that never wait do this work one after the other. "
        "`Over no communication` is the ratio to that loop: "
        f"{how_often(size.repeats)}, or one run where there is no range. `By its "
        "bytes` is the ratio if only the link took time, from the bytes that a learner "
        "sends; for a method that sends while it computes, the longer of both counts, "
        "and gossip waits for no link. `Exchanges a step` is how often a learner "
        "averages, for methods that average when they can. `CPU` counts all threads "
        "of a learner's process, without the kernel's part of the network."
    )


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Measure, print the tables and write them to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rate", type=int, default=1000, help="rate of the links in Mbit/s"
    )
    parser.add_argument("--quick", action="store_true", help="use a small model")
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
        seeds=["each learner's rank, for its gradients"],
        repeats=size.repeats,
        variant=str(rate),
        arguments=cmd,
    )


if __name__ == "__main__":
    main()
