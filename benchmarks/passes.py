"""The benchmark measures the passes over parameters and moments that methods add.

Each row is a pass over a model of 35 million parameters, on one core and in one
process, with compiled passes and with the operations of PyTorch. It is compared with
the seconds in which a copy between two tensors moves as many bytes, in the same run.
All rows take turns.

    python benchmarks/passes.py          # one minute; one core
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from emulated.emulated import Emulated, batch
from report import how_often, spread, write_report
from torch import Tensor
from torch.optim import Adam, Optimizer

from espnet_distopt import Session
from espnet_distopt.algorithms.gossip.snapshot import Snapshot
from espnet_distopt.core import compiled
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import one_line_errors
from espnet_distopt.optimizers.consistent import correct

BATCHES = 4
"""The number of batches for which the second moment is corrected."""

Timed = Callable[[], float]


@dataclass(kw_only=True)
class PassRow:
    """A pass and its measurements.

    Attributes:
        name: the name of the pass.
        tensors: how many tensors of the model's size it reads or writes at least.
        time: makes the pass, and returns its seconds.
        found: the seconds of each repeat, with compiled passes and without.
    """

    name: str
    tensors: int
    time: Timed
    found: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def model_with_gradients(parameters: int) -> Emulated:
    """Return a model whose parameters have gradients."""
    model = Emulated(parameters, 0.0, rank=0)
    model(batch()).backward()
    return model


def adam(parameters: int) -> Optimizer:
    """Return an optimizer that has made a step."""
    optimizer = Adam(model_with_gradients(parameters).parameters(), 1e-6, fused=True)
    optimizer.step()
    return optimizer


def copying(parameters: int) -> Timed:
    """Return what times a copy from one tensor to another."""
    source, target = torch.ones(parameters), torch.ones(parameters)
    return lambda: seconds(lambda: target.copy_(source))


def stepping(parameters: int, corrected: bool) -> Timed:
    """Return what times a step of Adam."""
    optimizer = adam(parameters)
    if corrected:
        assert correct(optimizer, BATCHES)
    return lambda: seconds(optimizer.step)


def exchanging(parameters: int) -> tuple[Timed, Timed]:
    """Return what times both passes of an exchange of gossip, one after the other."""
    model = model_with_gradients(parameters)
    snapshot = Snapshot(Learner(model, Adam(model.parameters())))

    def difference() -> float:
        snapshot.begin_exchange()
        received: Tensor = snapshot.spare().fill_(1.0)
        return sum(seconds(each.work) for each in snapshot.end_exchange(received))

    return difference, lambda: seconds(snapshot.publish)


def ending_a_block(parameters: int) -> Timed:
    """Return what times the end of a block of BMUF-Adam.

    The training has one learner, so that nothing is sent.
    """
    model = model_with_gradients(parameters)
    optimizer = Adam(model.parameters(), 1e-6, fused=True)
    session = Session(model, optimizer, "bmuf_adam", period=1, momentum=0.75)

    def end() -> float:
        optimizer.step()
        return seconds(session.step)

    return end


def rows(parameters: int) -> list[PassRow]:
    """Return all passes; the copy comes first."""
    difference, publish = exchanging(parameters)
    plain, corrected = (stepping(parameters, each) for each in (False, True))
    return [
        PassRow(name="a copy", tensors=2, time=copying(parameters)),
        PassRow(name="Adam's step", tensors=7, time=plain),
        PassRow(name="Adam's step, corrected", tensors=15, time=corrected),
        PassRow(name="AD-PSGD, difference", tensors=4, time=difference),
        PassRow(name="AD-PSGD, mix and snapshot", tensors=4, time=publish),
        PassRow(
            name="BMUF-Adam, end of a block",
            tensors=14,
            time=ending_a_block(parameters),
        ),
    ]


def measure(found: Sequence[PassRow], repeats: int) -> None:
    """Measure all rows in turn, with compiled passes and without.

    The first turn of both kinds does not count: it compiles, and the system gives
    memory.
    """
    for repeat in range(repeats + 1):
        for kind, least in enumerate((compiled.LEAST, sys.maxsize)):
            with mock.patch.object(compiled, "LEAST", least):
                for row in found:
                    taken = row.time()
                    if repeat:
                        row.found[kind].append(taken)


def table(found: Sequence[PassRow]) -> list[str]:
    """Return the lines of the table."""
    a_byte = median(found[0].found[0]) / found[0].tensors
    lines = [
        "| pass | tensors | by its bytes, ms | compiled, ms | PyTorch, ms | "
        "PyTorch / compiled |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for row in found:
        both = [[1000 * each for each in kind] for kind in row.found]
        cells = [
            row.name,
            str(row.tensors),
            f"{1000 * a_byte * row.tensors:.0f}",
            *(spread(kind, ".0f") for kind in both),
            f"{median(both[1]) / median(both[0]):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _caption(parameters: int, repeats: int) -> str:
    return (
        f"The model has {parameters / 1e6:.3g} million parameters in float32. "
        "`Tensors` is how many tensors of that size a pass has to read or to write; "
        "`by its bytes` is what it would take if it moved them as fast as the copy "
        "does. "
        "Passes in place can be faster than that, because the processor reads what a "
        "copy overwrites. A figure is "
        f"{how_often(repeats)}. `PyTorch` is without compiled passes, as where numba "
        "is not installed; a copy and Adam's own step are PyTorch's in both columns. "
        f"The second moment is corrected for {BATCHES} batches. AD-PSGD "
        "computes the difference beside the training, and mixes in the training's "
        "thread. BMUF-Adam ends a block with block momentum, after the average."
    )


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a small model")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args(cmd)
    torch.set_num_threads(1)
    parameters, repeats = (2_000_000, 1) if args.quick else (35_000_000, 9)
    found = rows(parameters)
    measure(found, repeats)
    write_report(
        "passes",
        args.quick,
        args.out,
        table(found),
        _caption(parameters, repeats),
        {row.name: row.found for row in found},
        seeds=["0, for the gradients"],
        repeats=repeats,
        arguments=cmd,
    )


if __name__ == "__main__":
    main()
