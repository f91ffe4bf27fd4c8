"""The benchmark measures the memory that each algorithm needs on a learner.

Learners train a model of a million parameters with Adam. The benchmark adds up the
storages of all living tensors after each backward pass, each optimizer's step and each
session's step; the largest sum counts. Memory that an operation uses only while it runs
does not count. There are two and four real processes over gloo, where the buffers of
the driver count, and growing numbers of virtual learners, where messages in flight
count.

    python benchmarks/memory.py          # 15 minutes
"""

import argparse
import gc
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from emulated.learners import Namespace, launch
from report import write_report
from torch import Tensor, nn
from torch.optim import Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.session import Session
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner

SEED = 0
STEPS = 20
BLOCK = {"period": 4}
Options = dict[str, Any]
METHODS: dict[str, tuple[str, Options]] = {
    name: (name, BLOCK if hasattr(entry.config, "period") else {})
    for name, entry in ALGORITHMS.items()
}
METHODS["hadpsgd"] = ("hadpsgd", {"per_node": 2})
METHODS |= {
    f"{name}, delay 2": (name, {**BLOCK, "delay": 2})
    for name, entry in ALGORITHMS.items()
    if hasattr(entry.config, "delay")
}
TURNS = {"period": 16, "delay": 1, "fragments": 8}
METHODS |= {
    f"{name}, delay 1, 8 fragments": (name, TURNS)
    for name, entry in ALGORITHMS.items()
    if hasattr(entry.config, "fragments")
}
METHODS |= {
    f"{title}, bfloat16": (name, {**options, "exchange": "bfloat16"})
    for title, (name, options) in METHODS.items()
    if hasattr(ALGORITHMS[name].config, "exchange")
}


class Flat(nn.Module):
    """A model with `size` parameters in eight tensors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(size // 8) for _ in range(8))

    def loss(self) -> Tensor:
        """Return a loss whose gradients are always the same."""
        return torch.stack([part.sum() for part in self.parts]).sum()


def alive() -> int:
    """Return the bytes of all tensors that Python knows; each storage counts once."""
    storages = {}
    for one in gc.get_objects():
        if type(one) in (Tensor, nn.Parameter):
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            if one.is_leaf and one.grad is not None:
                storage = one.grad.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Peak:
    """The largest number of living bytes among all looks."""

    def __init__(self) -> None:
        self.bytes = 0

    def look(self) -> None:
        """Count the living bytes now.

        Only the training thread may call this method: a look from another thread would
        race with changes of `.grad`.
        """
        self.bytes = max(self.bytes, alive())


def process(rank: int, size: int, name: str, options: Options) -> float:
    """Train one learner in this process.

    Args:
        rank: the learner.
        size: the number of the model's parameters.
        name: the name of the algorithm.
        options: its options.

    Returns:
        The largest number of bytes, relative to the bytes of the parameters.
    """
    torch.manual_seed(SEED)
    model = Flat(size)
    optimizer = Adam(model.parameters())
    before = alive() - 4 * size
    with Session(model, optimizer, name, **options) as session:
        peak = Peak()
        for _ in range(STEPS):
            session.begin_batch(1)
            optimizer.zero_grad()
            model.loss().backward()  # type: ignore[no-untyped-call]
            time.sleep(0.02)  # Meanwhile the gossip goes on.
            peak.look()
            optimizer.step()
            peak.look()
            session.step()
            peak.look()
        session.finish()
        dist.barrier()
        return (peak.bytes - before) / (4 * size)


def simulated(size: int, learners: int, name: str, options: Options) -> float:
    """Train virtual learners.

    Args:
        size: the number of the model's parameters.
        learners: the number of learners.
        name: the name of the algorithm.
        options: its options.

    Returns:
        The largest number of bytes of all learners, relative to the bytes of all
        their parameters.
    """

    def virtual(rank: int) -> VirtualLearner:
        model = Flat(size)

        def gradient(_: int) -> float:
            loss = model.loss()
            loss.backward()  # type: ignore[no-untyped-call]
            # A look takes long, and it sees the tensors of all learners.
            if rank == 0:
                peak.look()
            return float(loss.detach())

        adam = Adam(model.parameters())
        return VirtualLearner(model, adam, gradient, name, rank, learners, **options)

    gc.collect()
    peak = Peak()
    before = alive()
    simulation = Simulation(
        [virtual(rank) for rank in range(learners)], Compute(spread=0.3), seed=SEED
    )
    simulation.start()
    simulation.epoch(STEPS)
    return (peak.bytes - before) / (4 * size * learners)


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a small model")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = 80_000 if args.quick else 1_000_000
    processes = (2,) if args.quick else (2, 4)
    virtual = (2,) if args.quick else (2, 8, 64)
    heads = [f"{n} processes" for n in processes] + [f"{n} simulated" for n in virtual]
    lines = [
        f"| algorithm | {' | '.join(heads)} | beside the optimizer |",
        "| :-- |" + " --: |" * (len(heads) + 1),
    ]
    data = {}
    for title, (name, options) in METHODS.items():
        found = {}
        for head, learners in zip(heads, processes, strict=False):
            places = [Namespace()] * learners
            peaks = launch(places, process, size, name, options, timeout=120)
            found[head] = max(peaks)
        for learners in virtual:
            peak = simulated(size, learners, name, options)
            found[f"{learners} simulated"] = peak
        data[title] = found
        more = max(found[head] for head in heads[: len(processes)]) - 4
        cells = " | ".join(f"{found[head]:.1f}" for head in heads)
        lines.append(f"| {title} | {cells} | {more:.1f} |")
        print(lines[-1], flush=True)
    caption = (
        f"The unit is one copy of the parameters ({4 * size:,} bytes). Parameters, "
        "gradients and Adam's two moments are 4 of the copies; the last column has "
        "what real processes keep beside these, with the driver's buffers. The figure "
        "of processes is the largest of any learner; that of simulated learners is "
        "their mean, with the messages in flight. hadpsgd has 2 learners per node. "
        f"Each training has {STEPS} steps. Blocks have 4 steps, or 16 with fragments."
    )
    write_report(
        "memory",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=[SEED],
        repeats=1,
    )


if __name__ == "__main__":
    main()
