"""Lightning's own trainer, whose computing is emulated by sleep.

Stock `DDPStrategy` divides an epoch's batches into equal shares; the learners of
`DistoptStrategy("adpsgd")` take batches from each other. The equal learners without
communication have a trainer of one device each. The whole epoch has all that Lightning
does at an epoch's end.
"""

import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from emulated.learners import Namespace, launch
from emulated.methods import Emulated, MeasuredMethod, batch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from espnet_distopt.lightning import DistoptStrategy
from straggling.frame import (
    THROUGHPUT,
    Epoch,
    Figures,
    Loop,
    Row,
    Run,
    each_once,
    of_epochs,
    slow_steps,
)
from straggling.plain import LEARNERS, PARAMETERS, STEP_SECONDS

STOCK = "DDPStrategy"


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


def rows(slowdown: float, quick: bool) -> list[Row]:
    """Return the rows; the first has equal learners without communication."""
    many, few = (160, 16) if quick else (960, 48)
    asked = (
        ("none", 1.0, many, False),
        (STOCK, slowdown, few, False),
        ("adpsgd", slowdown, many, True),
    )
    return [
        Row(
            label=name,
            run=Run(
                method=MeasuredMethod(name=name),
                learners=LEARNERS,
                slowdown=factor,
                steps=steps,
                queue=queue,
                slow=1,  # The bound is that of learners that do not wait.
                once=name == STOCK,
            ),
        )
        for name, factor, steps, queue in asked
    ]


def train(rank: int, run: Run, folder: str) -> Epoch:
    """Train for an epoch as learner `rank`."""
    name = run.method.name
    slow = run.slowdown if rank == LEARNERS - 1 else 1.0
    module = Timed(STEP_SECONDS * slow, rank)
    alone = name == "none"
    strategy: Any = "auto"
    if not alone:
        where = Joined()
        strategy = (
            DDPStrategy(cluster_environment=where)
            if name == STOCK
            else DistoptStrategy(name, cluster_environment=where)
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
    own = run.steps // LEARNERS if alone else run.steps
    dist.barrier()
    trainer.fit(module, DataLoader(TensorDataset(torch.arange(own)), batch_size=1))
    return Epoch(
        began=module.began,
        steps=module.steps,
        ended=module.ended,
        batches=module.batches,
    )


def measure(run: Run) -> Figures:
    """Make a run, and return its figures.

    Raises:
        LearnersFailedError: the training has failed.
    """
    timeout = 90 + 4 * run.steps / LEARNERS * STEP_SECONDS * run.slowdown
    places = [Namespace()] * LEARNERS
    with tempfile.TemporaryDirectory() as folder:
        return of_epochs(run, launch(places, train, run, folder, timeout=timeout))


def _caption(found: Sequence[Row], often: str) -> str:
    _, stock, ours = (row.run for row in found)
    return (
        f"{LEARNERS} processes train over gloo by Lightning "
        f"{metadata.version('lightning')}; one of them is {ours.slowdown:g} times "
        "slower. The figures are steps per second of all learners, relative to "
        f"{LEARNERS} equal learners without communication, each with a trainer of its "
        f"own. Computing is emulated: a step sleeps {STEP_SECONDS} s; the optimizer's "
        f"step and the communication of {PARAMETERS:,} parameters are real. An epoch "
        f"has {ours.steps} batches ({stock.steps} with DDP, which is one run); a "
        f"figure is {often}. The bound is {ours.bound:.3f}."
    )


LOOP = Loop(
    rows=rows,
    measure=measure,
    columns=(
        *THROUGHPUT,
        ("steps of the slow learner", slow_steps),
        ("each batch once", each_once),
    ),
    caption=_caption,
)
