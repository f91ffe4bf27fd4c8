"""The benchmark measures how much one slow learner slows others down in Lightning.

Four real processes train over gloo by Lightning's own trainer; one of them is ten times
slower. Computing is emulated by sleep, so two cores are enough. Stock `DDPStrategy`
divides an epoch's batches into equal shares; learners of `DistoptStrategy("adpsgd")`
take batches from each other. There are two figures, both relative to equal learners
without communication, whose trainers have a device each:

- The middle of an epoch: the steps per second of all learners, from the slowest one's
  first step to the fastest one's last.
- The whole epoch: its steps per second, until the last learner has finished, with all
  that Lightning does at an epoch's end.

The bound is (n - 1 + 1/s) / n, where only the steps of the slow learner are lost.

    python benchmarks/lightning_straggler.py     # three minutes, mostly asleep
"""

import argparse
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from emulated.emulated import Emulated, batch
from emulated.learners import Namespace, launch
from emulated.straggler_runs import LEARNERS, PARAMETERS, STEP_SECONDS
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from report import how_often, spread, write_report
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from espnet_distopt.lightning import DistoptStrategy

METHODS = {"none": "none, equal learners", "ddp": "DDPStrategy", "adpsgd": "adpsgd"}


class Joined(LightningEnvironment):
    """The environment of processes that have a process group already."""

    @property
    def creates_processes_externally(self) -> bool:
        """Whether somebody else starts the processes."""
        return True

    def local_rank(self) -> int:
        """Return the rank."""
        return dist.get_rank()


class Timed(pl.LightningModule):
    """An emulated model that notes when its steps end.

    Args:
        seconds: the seconds of a step.
        rank: the learner.
    """

    def __init__(self, seconds: float, rank: int) -> None:
        super().__init__()
        self.net = Emulated(PARAMETERS, seconds, rank)
        self.began = self.ended = 0.0
        self.steps: list[float] = []
        self.batches: list[int] = []

    def on_train_start(self) -> None:
        """Note the beginning."""
        self.began = time.monotonic()

    def training_step(self, numbers: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of an emulated batch."""
        self.batches += numbers[0].tolist()
        loss: Tensor = self.net(batch())
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Note the end of a step."""
        self.steps.append(time.monotonic())

    def on_train_end(self) -> None:
        """Note the end, after all that ends an epoch."""
        self.ended = time.monotonic()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One learner's record of an epoch; times are those of the machine's clock.

    Attributes:
        began: the time at which the epoch began, in seconds.
        steps: the time at which each step ended, in seconds.
        ended: the time at which the epoch ended, in seconds.
        batches: the numbers of the batches that it was trained on.
    """

    began: float
    steps: list[float]
    ended: float
    batches: list[int]


def train(rank: int, method: str, slowdown: float, steps: int, folder: str) -> Epoch:
    """Train for an epoch as learner `rank`."""
    slow = slowdown if rank == LEARNERS - 1 else 1.0
    module = Timed(STEP_SECONDS * slow, rank)
    alone = method == "none"
    strategy: Any = "auto"
    if not alone:
        where = Joined()
        strategy = (
            DDPStrategy(cluster_environment=where)
            if method == "ddp"
            else DistoptStrategy(method, cluster_environment=where)
        )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1 if alone else LEARNERS,
        strategy=strategy,
        plugins=[Joined()] if alone else None,
        max_epochs=1,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    own = steps // LEARNERS if alone else steps
    dist.barrier()
    trainer.fit(module, DataLoader(TensorDataset(torch.arange(own)), batch_size=1))
    return Epoch(
        began=module.began,
        steps=module.steps,
        ended=module.ended,
        batches=module.batches,
    )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a run.

    Attributes:
        middle: the steps per second of all learners in the middle of the epoch.
        whole: the steps per second of all learners in the whole epoch.
        slow_steps: the number of steps of the slow learner.
        once: whether every batch was trained on exactly once.
    """

    middle: float
    whole: float
    slow_steps: int
    once: bool


def figures(method: str, slowdown: float, steps: int) -> Figures:
    """Make a run, and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        epochs: list[Epoch] = launch(
            [Namespace()] * LEARNERS,
            train,
            method,
            1.0 if method == "none" else slowdown,
            steps,
            folder,
            timeout=90 + 4 * steps / LEARNERS * STEP_SECONDS * slowdown,
        )
    whole = max(e.ended for e in epochs) - min(e.began for e in epochs)
    first = max(e.steps[0] for e in epochs)
    last = min(e.steps[-1] for e in epochs)
    made = sum(first < end <= last for e in epochs for end in e.steps)
    batches = sorted(number for e in epochs for number in e.batches)
    return Figures(
        middle=made / (last - first),
        whole=sum(len(e.steps) for e in epochs) / whole,
        slow_steps=len(epochs[-1].steps),
        once=batches == list(range(steps)),
    )


def table(found: dict[str, list[Figures]], bound: float) -> list[str]:
    """Return the lines of the table, with figures relative to those of equal ones."""
    lines = [
        "| method | middle of an epoch | of the bound | whole epoch | of the bound | "
        "steps of the slow learner | each batch once |",
        "| :-- | --: | --: | --: | --: | --: | :-- |",
    ]
    equal = median(each.whole for each in found["none"])
    for method, runs in found.items():
        if method == "none":
            continue
        cells = [METHODS[method]]
        for values in ([f.middle for f in runs], [f.whole for f in runs]):
            ratios = [value / equal for value in values]
            cells += [spread(ratios, ".3f"), f"{median(ratios) / bound:.2f}"]
        cells.append(spread([float(f.slow_steps) for f in runs], ".0f"))
        cells.append("yes" if all(f.once for f in runs) else "no")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--slowdown", type=float, default=10.0, help="factor of the slow learner"
    )
    parser.add_argument("--repeats", type=int, default=3, help="repeats of adpsgd")
    parser.add_argument("--quick", action="store_true", help="make one short run each")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    repeats = 1 if args.quick else max(1, args.repeats)
    many, few = (160, 16) if args.quick else (960, 48)
    found: dict[str, list[Figures]] = {"none": [], "ddp": [], "adpsgd": []}
    for repeat in range(repeats):
        for method, runs in found.items():
            if method == "ddp" and repeat:
                continue
            steps = few if method == "ddp" else many
            runs.append(figures(method, args.slowdown, steps))
            print(f"{method}: {runs[-1]}", flush=True)
    bound = (LEARNERS - 1 + 1 / args.slowdown) / LEARNERS
    caption = (
        f"{LEARNERS} processes train over gloo by Lightning "
        f"{metadata.version('lightning')}; one of them is {args.slowdown:g} times "
        "slower. The figures are steps per second of all learners, relative to "
        f"{LEARNERS} equal learners without communication, each with a trainer of its "
        f"own. Computing is emulated: a step sleeps {STEP_SECONDS} s; the optimizer's "
        f"step and the communication of {PARAMETERS:,} parameters are real. An epoch "
        f"has {many} batches ({few} with DDP, which is one run); a figure is "
        f"{how_often(repeats)}. The bound is {bound:.3f}."
    )
    data = {method: [asdict(f) for f in runs] for method, runs in found.items()}
    write_report(
        "lightning_straggler",
        args.quick,
        args.out,
        table(found, bound),
        caption,
        data,
        seeds=["each learner's rank, for its gradients"],
        repeats=repeats,
    )


if __name__ == "__main__":
    main()
