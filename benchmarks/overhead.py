"""The benchmark measures the overhead of a session with a single learner.

It compares the time of a training step with a session, for every algorithm, with that
of the bare loop (forward pass, backward pass, Adam). Each method has a model of its
own. In every repeat all methods take turns, in an order that is drawn anew. One model
is a BLSTM on padded batches, as in `conf/blstm.yaml`; the other is so small that the
overhead shows.

    python benchmarks/overhead.py          # four minutes
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from report import write_report
from torch import Tensor, nn
from torch.optim import Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder
from espnet_distopt.session import Session

GOAL = 1.02
SEED = 0
BATCH, FEATURES, OUTPUTS = 32, 40, 30
BARE = "the bare loop"
OPTIONS: dict[str, dict[str, Any]] = {"slowmo": {"momentum": 0.0}}


class Blstm(nn.Module):
    """A BLSTM of three layers of 160 cells, a bottleneck, and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = PaddedRNNEncoder(
            FEATURES,
            use_projection=False,
            num_layers=3,
            hidden_size=160,
            output_size=256,
        )
        self.output = nn.Linear(256, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss."""
        lengths = torch.full((len(x),), x.size(1))
        loss: Tensor = self.output(self.encoder(x, lengths)[0]).square().mean()
        return loss


class Small(nn.Module):
    """A network with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(480, 64), nn.Tanh(), nn.Linear(64, OUTPUTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss."""
        loss: Tensor = self.layers(x).square().mean()
        return loss


class OverheadCase(NamedTuple):
    """A model and its input.

    Attributes:
        name: the name of the model in the table.
        model: a function that makes the model.
        shape: the shape of its input.
        steps: the number of steps of a turn.
    """

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    steps: int


CASES = (
    OverheadCase("BLSTM 3x160", Blstm, (BATCH, 60, FEATURES), 1),
    OverheadCase("one hidden layer of 64", Small, (BATCH, 480), 100),
)


def turn(case: OverheadCase, algorithm: str | None) -> Callable[[], float]:
    """Return a function that trains for a turn and returns the seconds per step.

    Args:
        case: the model and its input.
        algorithm: the name of the algorithm; None trains without a session.
    """
    torch.manual_seed(SEED)
    model, x = case.model(), torch.randn(case.shape)
    optimizer = Adam(model.parameters())
    session = None
    if algorithm is not None:
        session = Session(model, optimizer, algorithm, **OPTIONS.get(algorithm, {}))

    def run() -> float:
        begun = time.perf_counter()
        for _ in range(case.steps):
            if session is not None:
                session.begin_batch(len(x))
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
            if session is not None:
                session.step()
                session.metrics()
        return (time.perf_counter() - begun) / case.steps

    return run


def measure(case: OverheadCase, repeats: int) -> dict[str, list[float]]:
    """Return the seconds per step of each method in every repeat."""
    turns = {name: turn(case, name) for name in ALGORITHMS}
    turns[BARE] = turn(case, None)
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    source = random.Random(SEED)
    for repeat in range(repeats + 1):
        for name in source.sample(list(turns), len(turns)):
            once = turns[name]()
            if repeat:  # The first turn warms up.
                seconds[name].append(once)
    return seconds


def row(name: str, seconds: list[float], bare: list[float]) -> dict[str, Any]:
    """Return a method's figures.

    Args:
        name: the name of the algorithm.
        seconds: its seconds per step in each repeat.
        bare: those of the bare loop; a ratio is that of one repeat.
    """
    ratios = sorted(a / b for a, b in zip(seconds, bare, strict=True))
    milliseconds = 1e3 * median(seconds)
    difference = 1e6 * (median(seconds) - median(bare))
    return {
        "algorithm": name,
        "milliseconds": milliseconds,
        "ratio": median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
        "microseconds_more": difference,
    }


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="make few repeats")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 2 if args.quick else 40
    lines = [
        "| model | algorithm | ms a step | over the bare loop (quartiles) | µs more |",
        "| :-- | :-- | --: | --: | --: |",
    ]
    data = {}
    for case in CASES:
        seconds = measure(case, repeats)
        bare = seconds.pop(BARE)
        found = [row(name, times, bare) for name, times in seconds.items()]
        data[case.name] = {"bare_ms": 1e3 * median(bare), "algorithms": found}
        lines.append(f"| {case.name} | {BARE} | {1e3 * median(bare):.3f} | 1 | |")
        for one in found:
            low, high = one["quartiles"]
            lines.append(
                f"| {case.name} | {one['algorithm']} | {one['milliseconds']:.3f} | "
                f"{one['ratio']:.3f} ({low:.3f} - {high:.3f}) | "
                f"{one['microseconds_more']:.0f} |"
            )
    caption = (
        f"The optimizer is Adam; batches have {BATCH} samples, for the BLSTM of 60 "
        f"frames. Figures are medians of {repeats} repeats, whose order of turns is "
        "drawn anew; a ratio is that of one repeat. The goal for the BLSTM is "
        f"{GOAL:g}. Blocks have 8 steps (diloco: 500). slowmo has no momentum here, "
        "because with momentum it would be another training."
    )
    write_report(
        "overhead",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=[SEED],
        repeats=repeats,
    )


if __name__ == "__main__":
    main()
