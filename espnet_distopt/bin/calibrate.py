"""Measure the links between learners, and write them to a file for `distopt simulate`.

    distopt launch --nproc 4 -m espnet_distopt.bin.calibrate --out cluster.yaml

It is started as a training is: by the launcher, by torchrun, or by Slurm.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from espnet_distopt.distributed import slurm_step
from espnet_distopt.errors import InputError, one_line_errors

if TYPE_CHECKING:
    from espnet_distopt.simulation.cluster_file import StepTime
    from espnet_distopt.simulation.network import Network

FEW_STEPS = 20
"""Fewer steps tell badly how long one takes; the first ones are slow."""

LONGEST = 600.0
"""Seconds of a message; a longer one would meet the timeouts of process groups."""


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Measure latency and bandwidth between the learners of this run, "
        "inside a node and between nodes, and write a cluster file for `distopt "
        "simulate --cluster`. It takes about half a minute. Start it as a training: "
        "distopt launch --nproc 4 -m espnet_distopt.bin.calibrate --out cluster.yaml",
        epilog="Messages are sent by gloo, from the host's memory. On one machine "
        "alone, each learner is taken for a node of its own, and what they share for "
        "the switch.",
    )
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--exp",
        type=Path,
        help="experiment directory of a training on these machines, from which the "
        "seconds of a step are taken",
    )
    parser.add_argument(
        "--message_seconds",
        type=float,
        default=0.5,
        help="how long a message takes by which a bandwidth is measured (default: 0.5)",
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Measure, and write the file; every learner of the run calls it."""
    args = get_parser().parse_args(cmd)
    slurm_step.apply(cmd)
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size < 2:
        raise InputError(
            "one learner has no links to measure; start several: distopt launch "
            "--nproc 2 -m espnet_distopt.bin.calibrate --out cluster.yaml"
        )
    if not 0 < args.message_seconds <= LONGEST:
        raise InputError(
            f"--message_seconds must be > 0 and at most {LONGEST:g}, not "
            f"{args.message_seconds:g}"
        )
    if not args.out.absolute().parent.is_dir():
        raise InputError(f"{args.out.parent}: no such directory")
    if args.out.is_dir():
        raise InputError(f"{args.out} is a directory, expected the name of a file")
    per_node = _per_node(size)
    # torch takes seconds to import, and mistakes are told before.
    step = _step_time(args.exp) if args.exp else None
    import torch.distributed as dist

    from espnet_distopt.files.writing import explain_failed_write
    from espnet_distopt.simulation.cluster_file import Cluster, write_cluster

    dist.init_process_group("gloo")
    try:
        network = _measure(size, per_node, args.message_seconds)
        if dist.get_rank() == 0:
            nodes = size // per_node
            where = (
                f"{size} learners on {nodes} nodes, {socket.gethostname()} the first"
            )
            source = f"measured on {date.today()} by distopt calibrate: {where}; gloo"
            cluster = Cluster(network=network, step=step, source=source)
            with explain_failed_write(args.out):
                write_cluster(cluster, args.out)
            print(f"written: {args.out}", flush=True)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _per_node(size: int) -> int:
    """Return the number of learners of a node; 1 if there is only one machine."""
    from espnet_distopt.distributed.launcher import learners_per_node

    found = learners_per_node(size, os.environ)
    if found is None:
        raise InputError(
            "the machines have unequal numbers of learners, or the launcher does not "
            "say how many; start equally many on each, with distopt launch or torchrun"
        )
    return 1 if found == size else found


def _step_time(directory: Path) -> "StepTime":
    from espnet_distopt.monitoring.experiment import Experiment
    from espnet_distopt.simulation.calibration import Computed, step_time

    found = Experiment.read(directory, whole=True)
    computed = [
        Computed(line.batches, line.samples, line.computing)
        for each in (found.learners.values() if found else ())
        for line in each.lines
        if line.samples and line.computing is not None
    ]
    if not computed:
        raise InputError(
            f"{directory}: has no steps of a training with a `distopt` algorithm"
        )
    steps = sum(each.batches for each in computed)
    if steps < FEW_STEPS and os.environ.get("RANK", "0") == "0":
        print(
            f"{directory}: {steps} steps only, and the first ones are slow: the time "
            "of a step is better taken from a training of more",
            file=sys.stderr,
        )
    return step_time(computed)


def _measure(size: int, per_node: int, seconds: float) -> "Network":
    """Return the network, and print each figure as soon as it is known."""
    import torch.distributed as dist

    from espnet_distopt.distributed.link_times import bandwidth, latency
    from espnet_distopt.simulation.calibration import LINKS, experiments, network

    pairs = experiments(size, per_node)
    latencies: dict[str, float] = {}
    bandwidths: dict[str, float] = {}
    for name, exchanging in pairs.items():
        if name in LINKS.values():
            latencies[name] = latency(exchanging[0])
        rate = bandwidth(exchanging, latencies[LINKS[name]], seconds)
        bandwidths[name] = rate
        if dist.get_rank() == 0:
            words = f"{1e6 * latencies[name]:.0f} us and " if name in latencies else ""
            many = (
                f"{len(exchanging)} pairs at a time" if exchanging[1:] else "one pair"
            )
            said = f"{name}: {words}{rate / 1e6:.4g} MB/s each way for {many}"
            print(said, flush=True)
    return network(per_node, pairs, bandwidths, latencies)


if __name__ == "__main__":
    main()
