"""The benchmark times a training step of the padded BLSTM encoder and of ESPnet's.

Both encoders have the same weights and the same input: 32 utterances of 150 to 250
frames of 40 features, and a bottleneck of 256 (`conf/blstm.yaml`). Their outputs must
agree to 1e-5. The limit of both is the time of the matrix products alone, over frames
that are no padding, at the rate of one product of two large matrices.

    python benchmarks/blstm.py          # minutes on two idle cores
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from report import spread, write_report
from torch import Tensor
from torch.nn import functional

from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder

BATCH, FEATURES, BOTTLENECK = 32, 40, 256
TOLERANCE = 1e-5
LIMIT = "limit: products"
LARGE = 2048
"""The rows and the columns of the matrices whose product gives the limit's rate."""


class BlstmCase(NamedTuple):
    """A size of the model, and how it is measured.

    Attributes:
        layers: the number of bidirectional layers.
        cells: the number of cells of a layer in each direction.
        threads: the number of threads that compute.
        repeats: the number of steps that are timed.
        frames: the length of the longest utterance.
    """

    layers: int
    cells: int
    threads: int
    repeats: int
    frames: int = 250


class Times(NamedTuple):
    """The times of a step.

    Attributes:
        step: the seconds of the step.
        forward: the seconds of its forward pass.
        cpu: the processor seconds of the step, over all threads.
    """

    step: float
    forward: float
    cpu: float


FULL = (BlstmCase(3, 160, 1, 5), BlstmCase(3, 160, 2, 5), BlstmCase(6, 512, 1, 2))
QUICK = (BlstmCase(2, 32, 1, 2, frames=20), BlstmCase(2, 32, 2, 2, frames=20))


def encoders(case: BlstmCase) -> dict[str, RNNEncoder]:
    """Return both encoders, with the same weights."""
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
    """Return the times of a forward and a backward pass, and the output."""
    encoder.zero_grad()
    began, cpu = time.perf_counter(), time.process_time()
    y = encoder(x, lengths)[0]
    forward = time.perf_counter() - began
    y.square().sum().backward()
    times = Times(time.perf_counter() - began, forward, time.process_time() - cpu)
    return times, y.detach()


def forward_only(encoder: RNNEncoder, x: Tensor, lengths: Tensor) -> float:
    """Return the seconds of a forward pass without gradients."""
    with torch.no_grad():
        began = time.perf_counter()
        encoder(x, lengths)
        return time.perf_counter() - began


@torch.no_grad()
def limit(case: BlstmCase, frames: int) -> Times:
    """Return the least times of a step: its products at the rate of a large one.

    Args:
        case: the size of the model.
        frames: the number of frames of all utterances, without padding.
    """
    inputs = [FEATURES] + [2 * case.cells] * (case.layers - 1)
    # Each layer has two directions, and a product has an addition for each factor.
    layers = [16 * frames * case.cells * (size + case.cells) for size in inputs]
    forward = sum(layers) + 4 * frames * case.cells * BOTTLENECK
    # The backward pass has as many products for the inputs as for the weights; nobody
    # needs the gradient of the features.
    step = 3 * forward - 16 * frames * case.cells * FEATURES
    rate = _operations_a_second()
    return Times(step / rate, forward / rate, case.threads * step / rate)


def _operations_a_second() -> float:
    """Return the rate of oneDNN, which computes our LSTM, or of `torch.mm` if higher.

    MKL, which computes `torch.mm`, reaches half of it on processors of AMD.
    """
    a, b = torch.randn(LARGE, LARGE), torch.randn(LARGE, LARGE)
    packed = a.to_mkldnn() if torch.backends.mkldnn.is_available() else a
    seconds = []
    for _ in range(3):
        for product in (lambda: torch.mm(a, b), lambda: functional.linear(packed, b)):
            began = time.perf_counter()
            product()
            seconds.append(time.perf_counter() - began)
    return 2 * LARGE**3 / min(seconds)


def measure(
    case: BlstmCase,
) -> tuple[dict[str, list[Times]], dict[str, list[float]], float]:
    """Time the encoders and the matrix products in turns.

    Returns:
        The times of the steps, the seconds of forward passes without gradients, and the
        largest difference between the outputs of the encoders.
    """
    torch.set_num_threads(case.threads)
    both = encoders(case)
    shortest = case.frames * 3 // 5
    lengths = torch.linspace(case.frames, shortest, BATCH).long()
    x = torch.randn(BATCH, case.frames, FEATURES)
    steps: dict[str, list[Times]] = {name: [] for name in [*both, LIMIT]}
    alone: dict[str, list[float]] = {name: [] for name in both}
    difference = 0.0
    # A short step loads what is loaded only once.
    for encoder in both.values():
        step(encoder, x[:, : case.frames // 10], lengths // 10)
    for _ in range(case.repeats):
        outputs = []
        for name, encoder in both.items():
            alone[name].append(forward_only(encoder, x, lengths))
            times, y = step(encoder, x, lengths)
            steps[name].append(times)
            outputs.append(y)
        steps[LIMIT].append(limit(case, int(lengths.sum())))
        difference = max(difference, float((outputs[0] - outputs[1]).abs().max()))
    if difference > TOLERANCE:
        raise SystemExit(f"the outputs differ by {difference:.1e}: nothing to compare")
    return steps, alone, difference


def rows_of(
    case: BlstmCase, steps: dict[str, list[Times]], alone: dict[str, list[float]]
) -> list[str]:
    """Return the rows of the table; a ratio is that of one repeat."""
    stock = steps["ESPnet, packed"]
    rows = []
    for name, times in steps.items():
        pairs = list(zip(stock, times, strict=True))
        cells = [
            f"{case.layers} x {case.cells}",
            str(case.frames),
            str(case.threads),
            name,
            spread([t.step for t in times], ".2f"),
            spread(alone.get(name) or [t.forward for t in times], ".2f"),
            spread([t.cpu for t in times], ".2f"),
            spread([a.step / b.step for a, b in pairs], ".1f"),
            spread([a.cpu / b.cpu for a, b in pairs], ".1f"),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a tiny model")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    table = [
        "| layers x cells | frames | threads | encoder | step, s | forward alone, s "
        "| step, s of CPU | times as fast | the same, of CPU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    data = []
    cases = QUICK if args.quick else FULL
    for case in cases:
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
    repeats = {f"{c.layers} x {c.cells}": c.repeats for c in cases}
    caption = (
        f"A batch has {BATCH} utterances, whose lengths go evenly from the longest to "
        f"3/5 of it, and {FEATURES} features; the bottleneck has {BOTTLENECK} units. A "
        "cell is the median (min - max) of interleaved repeats: "
        f"{', '.join(f'{n} of {shape}' for shape, n in repeats.items())}. A step is a "
        f"forward and a backward pass. Outputs differ by {worst:.0e} at most. The "
        "limit is the time of the matrix products of the frames that are no padding, "
        f"at the rate of one product of two {LARGE} x {LARGE} matrices. CPU counts all "
        "threads; unlike the clock, it does not count what else the machine did."
    )
    write_report(
        "blstm",
        args.quick,
        args.out,
        table,
        caption,
        data,
        seeds=[0],
        repeats=max(case.repeats for case in cases),
        threads="threads as in the table",
    )


if __name__ == "__main__":
    main()
