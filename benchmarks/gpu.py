"""The benchmark measures on a GPU what the others measure on a CPU.

It times an algorithm's passes over the parameters against a copy; a full-size BLSTM by
ESPnet's encoder and by ours, in three precisions, and with its parameters in one
buffer, as in a session; and two learners who share the device, with gossip and without.

    python benchmarks/gpu.py                              # three minutes on a GPU
    python benchmarks/gpu.py --device cpu --quick         # tries the command
"""

import argparse
from pathlib import Path
from statistics import median

import torch
from accelerator import layers, passes, sharing
from report import spread, write_report

FULL = layers.Size(layers=6, cells=512, outputs=32_000, chunks=128, frames=21)
QUICK = layers.Size(layers=2, cells=16, outputs=50, chunks=4, frames=5)
PARAMETERS = 35_000_000


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="the device (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="use small models")
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
        "| a training step | precision | ms | chunks a second |",
        "| :-- | :-- | --: | --: |",
    ]
    steps = []
    for title, precision, times in layers.measure(size, device, repeats):
        ms, rate = spread([1e3 * s for s in times], ".1f"), size.chunks / median(times)
        lines.append(f"| {title} | {precision} | {ms} | {rate:,.0f} |")
        steps.append({"what": title, "precision": precision, "seconds": times})

    turns = 2 if args.quick else 3
    both, alone = sharing.measure(size, device, 5 if args.quick else 50, turns)
    lines += learners("two learners on the device", both)
    lines += learners("one learner, whose peer computes nothing", alone)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    caption = (
        f"Device: {name}. The network has {size.layers} bidirectional layers of "
        f"{size.cells} cells, a bottleneck of {layers.BOTTLENECK} and {size.outputs:,} "
        f"states, and a batch {size.chunks} chunks of {size.frames} frames of "
        f"{layers.FEATURES} features; a step is forward, backward and SGD. Cells are "
        f"the median (min - max) of {repeats} repeats, and of {turns} interleaved ones "
        "for learners that communicate, over the loopback. Those of two learners are "
        "the slower one's mean, and exchanges are those of a learner in a step. Gossip "
        "goes over TCP, all else over gloo or NCCL; NCCL uses sockets, as between "
        "machines. The goals are 85 % of a copy, and 1.05 for gossip."
    )
    data = {"passes": moved, "steps": steps, "two learners": both, "one": alone}
    write_report(
        "gpu",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=[0],
        repeats=repeats,
    )


def learners(title: str, found: sharing.Figures) -> list[str]:
    """Return the lines of a table of methods."""
    lines = [
        "",
        f"| {title} | ms a step | over no communication | exchanges |",
        "| :-- | --: | --: | --: |",
    ]
    bare = [_slowest(each) for each in found["no communication"]]
    for name, repeats in found.items():
        slowest = [_slowest(each) for each in repeats]
        ratios = [one / other for one, other in zip(slowest, bare, strict=True)]
        number = median(sum(n for _, n in each) / len(each) for each in repeats)
        ms = spread([1e3 * each for each in slowest], ".1f")
        lines.append(f"| {name} | {ms} | {spread(ratios, '.3f')} | {number:.2f} |")
    return lines


def _slowest(learners: list[tuple[float, float]]) -> float:
    return max(seconds for seconds, _ in learners)


if __name__ == "__main__":
    main()
