"""The benchmark measures on a GPU what the others measure on a CPU.

It times an algorithm's passes over the parameters against a copy; a full-size BLSTM by
ESPnet's encoder and by ours, eager and captured, in three precisions, beside the limit
of a single CUDA graph; whole trainings by ESPnet's trainer; and two learners who
share the device, with gossip and without.

    python benchmarks/gpu.py                              # three minutes on a GPU
    python benchmarks/gpu.py --device cpu --quick         # tries the command
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerator import layers, passes, sharing, training
from report import spread, write_report

FULL = layers.Size(layers=6, cells=512, outputs=32_000, chunks=128, frames=21)
QUICK = layers.Size(layers=2, cells=16, outputs=50, chunks=4, frames=5)
PARAMETERS = 35_000_000


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="the device (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="use small models")
    parser.add_argument(
        "--turns", type=int, default=3, help="repeats of learners (default: 3)"
    )
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no GPU; --device cpu --quick tries the command")
    device = torch.device(args.device)
    size, repeats = (QUICK, 2) if args.quick else (FULL, 20)
    parameters = 100_000 if args.quick else PARAMETERS

    moved = passes.measure(parameters, device, repeats)
    lines = [
        f"| a pass over {parameters:,} parameters | ms | GB/s | of a copy |",
        "| :-- | --: | --: | --: |",
    ]
    for name, found in moved.items():
        ms = spread([1e3 * s for s in found["seconds"]], ".2f")
        gigabytes = found["rate"] / 1e9
        lines.append(f"| {name} | {ms} | {gigabytes:.0f} | {found['share']:.0%} |")

    lines += [
        "",
        "| a step | precision | chunks | ms | over the limit | frames a second |",
        "| :-- | :-- | --: | --: | --: | --: |",
    ]
    steps: list[dict[str, Any]] = []
    for title, precision, chunks, times in layers.measure(size, device, repeats):
        step = {"what": title, "precision": precision, "chunks": chunks}
        steps.append({**step, "seconds": times})
    limits = {
        (s["precision"], s["chunks"]): median(s["seconds"])
        for s in steps
        if s["what"] == "limit"
    }
    for each in steps:
        times = each["seconds"]
        what, precision, chunks = each["what"], each["precision"], each["chunks"]
        limit = limits.get((precision, chunks))
        over = "" if limit is None else f"{median(times) / limit:.2f}"
        rate = chunks * size.frames / median(times)
        ms = spread([1e3 * s for s in times], ".1f")
        lines.append(
            f"| {what} | {precision} | {chunks:,} | {ms} | {over} | {rate:,.0f} |"
        )

    both: sharing.Figures = {}
    alone: sharing.Figures = {}
    trainings: dict[str, dict[str, float]] = {}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"

    def report(turns: int) -> None:
        """Write what has been measured so far, in case the rest does not end."""
        caption = (
            f"Device: {name}. The network has {size.layers} bidirectional layers of "
            f"{size.cells} cells, a bottleneck of {layers.BOTTLENECK} and "
            f"{size.outputs:,} states, and a batch {size.chunks} chunks of "
            f"{size.frames} frames of {layers.FEATURES} features; a step is forward, "
            f"backward and SGD. Cells are the median (min - max) of {repeats} repeats, "
            f"and of {turns} interleaved ones for learners that communicate, over the "
            "loopback. Those of two learners are the slower one's mean, and exchanges "
            "are those of a learner in a step. Gossip goes over TCP, all else over "
            "gloo or NCCL; NCCL uses sockets, as between machines. The goals are 85 % "
            "of a copy, and 1.05 for gossip."
        )
        write_report(
            "gpu",
            args.quick,
            args.out,
            [
                *lines,
                *of_trainings(trainings, size.chunks * size.frames),
                *learners("one learner, whose peer on the CPU computes nothing", alone),
                *learners("two learners on the device", both),
            ],
            caption,
            {
                "passes": moved,
                "steps": steps,
                "trainings": trainings,
                "two learners": both,
                "one": alone,
            },
            seeds=[0],
            repeats=repeats,
        )

    # An exchange takes as long as many steps, and two learners may take long for one.
    many, few = (5, 5) if args.quick else (400, 30)
    for turn in range(1, args.turns + 1):
        sharing.measure(size, device, many, alone, sharing.GOSSIP, sharing.beside)
        report(turn)
        if turn == 1:
            length = 3 if args.quick else 200
            for what, found in training.measure(size, device.type, length, limit=100):
                trainings[what] = found
                report(turn)
        sharing.measure(size, device, few, both, sharing.METHODS, sharing.learner)
        report(turn)
    failed = [name for found in (both, alone) for name in found if not all(found[name])]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def of_trainings(found: dict[str, dict[str, float]], frames: int) -> list[str]:
    """Return the lines of a table of trainings, whose batches have some frames."""
    lines = [
        "",
        "| a step of `hybrid_train` | ms | its wait for data | frames a second |",
        "| :-- | --: | --: | --: |",
    ]
    for what, seconds in found.items():
        step, wait = seconds["train_time"], seconds["iter_time"]
        ms = f"{1e3 * step:.1f} | {1e3 * wait:.1f}"
        lines.append(f"| {what} | {ms} | {frames / step:,.0f} |")
    return lines


def learners(title: str, found: sharing.Figures) -> list[str]:
    """Return the lines of a table of methods."""
    lines = [
        "",
        f"| {title} | ms a step | over no communication | exchanges |",
        "| :-- | --: | --: | --: |",
    ]
    bare = found.get("no communication", [])
    for name, repeats in found.items():
        pairs = [each for each in zip(repeats, bare, strict=True) if all(each)]
        if not pairs:
            lines.append(f"| {name} | failed | | |")
            continue
        slowest = [_slowest(one) for one, _ in pairs]
        ratios = [_slowest(one) / _slowest(other) for one, other in pairs]
        number = median(sum(n for _, n in one) / len(one) for one, _ in pairs)
        ms = spread([1e3 * each for each in slowest], ".1f")
        lines.append(f"| {name} | {ms} | {spread(ratios, '.3f')} | {number:.2f} |")
    return lines


def _slowest(learners: list[tuple[float, float]]) -> float:
    return max(seconds for seconds, _ in learners)


if __name__ == "__main__":
    main()
