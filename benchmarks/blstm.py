"""A training step of the padded BLSTM encoder, beside ESPnet's and bare GEMMs.

The same weights and input for both encoders: 32 utterances of 150 to 250 frames of 40
features, a bottleneck of 256 (`conf/blstm.yaml`). Their outputs must agree to 1e-5. The
limit is the time of the matrix products alone, over the padded batch: those with the
input in one piece for all frames, the recurrent ones frame by frame, and for the
backward pass those that give the gradients of states, inputs and weights.

    python benchmarks/blstm.py          # minutes on two idle cores
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from report import write_report
from torch import Tensor

from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder

BATCH, FEATURES, BOTTLENECK = 32, 40, 256
TOLERANCE = 1e-5


class BlstmCase(NamedTuple):
    """A size of the model and how it is measured."""

    layers: int
    cells: int
    threads: int
    repeats: int
    frames: int = 250


class Times(NamedTuple):
    """Seconds of a step, of its forward pass, and of the processor in it."""

    step: float
    forward: float
    cpu: float


FULL = (BlstmCase(3, 160, 1, 5), BlstmCase(3, 160, 2, 5), BlstmCase(6, 512, 1, 2))
QUICK = (BlstmCase(2, 32, 1, 2, frames=20), BlstmCase(2, 32, 2, 2, frames=20))


def encoders(case: BlstmCase) -> dict[str, RNNEncoder]:
    """Return the two with the same weights."""
    torch.manual_seed(0)
    shape = {
        "use_projection": False,
        "num_layers": case.layers,
        "hidden_size": case.cells,
        "output_size": BOTTLENECK,
    }
    stock = RNNEncoder(FEATURES, **shape)
    padded = PaddedRNNEncoder(FEATURES, **shape)
    padded.load_state_dict(stock.state_dict())
    return {"ESPnet, packed": stock, "ours, padded": padded}


def step(encoder: RNNEncoder, x: Tensor, lengths: Tensor) -> tuple[Times, Tensor]:
    """Time a forward and a backward pass; returns the output, too."""
    encoder.zero_grad()
    began, cpu = time.perf_counter(), time.process_time()
    y = encoder(x, lengths)[0]
    forward = time.perf_counter() - began
    y.square().sum().backward()
    times = Times(time.perf_counter() - began, forward, time.process_time() - cpu)
    return times, y.detach()


def forward_only(encoder: RNNEncoder, x: Tensor, lengths: Tensor) -> float:
    """Time a forward pass without gradients."""
    with torch.no_grad():
        began = time.perf_counter()
        encoder(x, lengths)
        return time.perf_counter() - began


@torch.no_grad()
def products(case: BlstmCase) -> Times:
    """Time the matrix products of a step; equal layers are measured once."""
    first = _layer_products(case, FEATURES)
    other = _layer_products(case, 2 * case.cells)
    counts = (2, 2 * (case.layers - 1))  # both directions
    return Times(
        *(
            sum(n * times[i] for n, times in zip(counts, (first, other), strict=True))
            for i in range(3)
        )
    )


def _layer_products(case: BlstmCase, inputs: int) -> Times:
    """Time those of one layer in one direction."""
    cells, rows = case.cells, BATCH * case.frames
    x, h = torch.randn(rows, inputs), torch.randn(rows, cells)
    gates = torch.randn(rows, 4 * cells)
    w_x, w_h = torch.randn(4 * cells, inputs), torch.randn(4 * cells, cells)
    state, gate = h[:BATCH], gates[:BATCH]
    began, cpu = time.perf_counter(), time.process_time()
    torch.mm(x, w_x.T)
    for _ in range(case.frames):
        torch.mm(state, w_h.T)
    forward = time.perf_counter() - began
    for _ in range(case.frames):
        torch.mm(gate, w_h)
    torch.mm(gates, w_x)
    torch.mm(gates.T, x)
    torch.mm(gates.T, h)
    return Times(time.perf_counter() - began, forward, time.process_time() - cpu)


def measure(
    case: BlstmCase,
) -> tuple[dict[str, list[Times]], dict[str, list[float]], float]:
    """Time all in turns; returns steps, forward passes and the largest difference."""
    torch.set_num_threads(case.threads)
    both = encoders(case)
    shortest = case.frames * 3 // 5
    lengths = torch.linspace(case.frames, shortest, BATCH).long()
    x = torch.randn(BATCH, case.frames, FEATURES)
    steps: dict[str, list[Times]] = {name: [] for name in [*both, "limit: GEMMs"]}
    alone: dict[str, list[float]] = {name: [] for name in both}
    difference = 0.0
    for encoder in both.values():  # a tenth of a step, to load what is loaded once
        step(encoder, x[:, : case.frames // 10], lengths // 10)
    for _ in range(case.repeats):
        outputs = []
        for name, encoder in both.items():
            alone[name].append(forward_only(encoder, x, lengths))
            times, y = step(encoder, x, lengths)
            steps[name].append(times)
            outputs.append(y)
        steps["limit: GEMMs"].append(products(case))
        difference = max(difference, float((outputs[0] - outputs[1]).abs().max()))
    if difference > TOLERANCE:
        raise SystemExit(f"the outputs differ by {difference:.1e}: nothing to compare")
    return steps, alone, difference


def spread(values: list[float], form: str = ".2f") -> str:
    """Median and range."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}}-{high:{form}})"


def rows_of(
    case: BlstmCase, steps: dict[str, list[Times]], alone: dict[str, list[float]]
) -> list[str]:
    """Return the rows of the table; ratios are those of neighbours in time."""
    stock = steps["ESPnet, packed"]
    rows = []
    for name, times in steps.items():
        pairs = list(zip(stock, times, strict=True))
        cells = [
            f"{case.layers} x {case.cells}",
            str(case.frames),
            str(case.threads),
            name,
            spread([t.step for t in times]),
            spread(alone.get(name) or [t.forward for t in times]),
            spread([t.cpu for t in times]),
            spread([a.step / b.step for a, b in pairs], ".1f"),
            spread([a.cpu / b.cpu for a, b in pairs], ".1f"),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results")
    args = parser.parse_args()
    table = [
        "| layers x cells | frames | threads | encoder | step, s | forward alone, s "
        "| step, s of CPU | times as fast | the same, of CPU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    data = []
    for case in QUICK if args.quick else FULL:
        steps, alone, difference = measure(case)
        table += rows_of(case, steps, alone)
        print("\n".join(table[-3:]), flush=True)
        data.append(
            {
                "case": case._asdict(),
                "difference": difference,
                "steps": {n: [t._asdict() for t in ts] for n, ts in steps.items()},
                "forward": alone,
            }
        )
    worst = max(entry["difference"] for entry in data)
    caption = (
        f"Batches of {BATCH}, lengths evenly from the longest to 3/5 of it, "
        f"{FEATURES} features, bottleneck of {BOTTLENECK}; medians (min-max) of "
        "interleaved repeats. A step is forward and backward. Outputs differ by "
        f"{worst:.0e} at most. GEMMs over the padded batch: a fifth of it is padding, "
        "which the packed encoder leaves out. CPU counts all threads; unlike the "
        "clock, it does not see what else the machine did. Seed 0."
    )
    write_report(
        "blstm", args.quick, args.out, table, caption, data, "threads as in the table"
    )


if __name__ == "__main__":
    main()
