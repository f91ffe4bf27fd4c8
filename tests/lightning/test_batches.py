"""Which batches all learners number alike, and several loaders of training."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler

from espnet_distopt.errors import InputError
from espnet_distopt.lightning import DistoptStrategy
from espnet_distopt.lightning.batches import QueuedLoader
from tests.lightning.toy import Found, Toy, data, strategy, trainer
from tests.processes import launch

CHOSEN = list(range(0, 64, 2))
"""The samples that the samplers choose from."""

EPOCHS = 3

Notes = dict[int, list[list[int]]]
"""The batches of each epoch."""


class Frames(BatchSampler):
    """Batches of unequal size, in an order of their own.

    Lightning gives it a learner's samples, so that learners have unequal numbers of
    batches.
    """

    def __iter__(self) -> Iterator[list[int]]:
        left = list(self.sampler)
        left = [left[place] for place in torch.randperm(len(left))]
        while left:
            count = 6 if left[0] % 4 else 2
            # BatchNorm needs two samples.
            count = count if len(left) - count > 1 else len(left)
            yield left[:count]
            del left[:count]


class Noted(Toy):
    """Notes its batches; learner 1 may be told to stop in the second epoch.

    Args:
        notes: where they are noted.
        stop: see `Toy`.
    """

    def __init__(self, notes: Notes, stop: int | None = None) -> None:
        super().__init__("step", stop=stop if dist.get_rank() == 1 else None)
        self.notes = notes

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.notes.setdefault(self.current_epoch, []).append(batch[0].tolist())
        return super().training_step(batch, batch_idx)


def fit(
    folder: Path,
    sampler: Any,
    notes: Notes,
    stop: int | None = None,
    again: str | None = None,
) -> None:
    """Train on the batches of a sampler, from random numbers of this learner's own."""
    torch.manual_seed(7 + dist.get_rank() + 100 * (again is not None))
    kind = "batch_sampler" if isinstance(sampler, BatchSampler) else "sampler"
    size = {} if isinstance(sampler, BatchSampler) else {"batch_size": 4}
    loader: DataLoader[Any] = DataLoader(data(64), **{kind: sampler}, **size)
    fitted = trainer(folder, strategy("adpsgd"), 2, max_epochs=EPOCHS)
    fitted.fit(Noted(notes, stop), loader, ckpt_path=again)


def random_order(own: int | None = None) -> SubsetRandomSampler:
    """Return a sampler; `own` is the seed of a generator of its own."""
    generator = torch.Generator().manual_seed(own) if own is not None else None
    return SubsetRandomSampler(CHOSEN, generator)


def different() -> str:
    """Return what is said where learners choose from different samples."""
    rank = dist.get_rank()
    try:
        fit(Path(), SubsetRandomSampler(CHOSEN[rank : 30 + rank]), {})
    except InputError as error:
        return str(error)
    return ""


def runs(folder: Path) -> dict[str, Any]:
    rank = dist.get_rank()
    found: dict[str, Notes] = {"global": {}, "own": {}, "frames": {}, "stopped": {}}
    fit(folder, random_order(), found["global"])
    fit(folder, random_order(own=rank), found["own"])
    fit(folder, Frames(range(64), 4, False), found["frames"])
    with pytest.raises(SystemExit):
        fit(folder, random_order(), found["stopped"], stop=1)
    fit(folder, random_order(), found["stopped"], again="hpc")
    return {**found, "different": different()}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch(2, runs, tmp_path_factory.mktemp("draws"), timeout=200)


def batches(two: Found, kind: str, epoch: int) -> list[list[int]]:
    return [batch for learner in two for batch in learner[kind].get(epoch, [])]


@pytest.mark.parametrize("kind", ["global", "own", "frames", "stopped"])
def test_each_sample_is_trained_on_once_an_epoch(two: Found, kind: str) -> None:
    chosen = range(64) if kind == "frames" else CHOSEN
    for epoch in range(EPOCHS):
        found = batches(two, kind, epoch)
        assert Counter(n for batch in found for n in batch) == Counter(chosen)


@pytest.mark.parametrize("kind", ["global", "own"])
def test_each_epoch_has_an_order_of_its_own(two: Found, kind: str) -> None:
    orders = {str(sorted(batches(two, kind, epoch))) for epoch in range(EPOCHS)}
    assert len(orders) == EPOCHS


def test_different_samples_are_refused_on_all_learners(two: Found) -> None:
    for rank, learner in enumerate(two):
        said = f"learner {rank}: the learners' loaders have different batches: give all"
        assert learner["different"].startswith(said)


class Both(Toy):
    """Trains on a batch of each of two loaders."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        super().training_step(batch["b"], batch_idx)
        return super().training_step(batch["a"], batch_idx)


def fit_both(folder: Path, module: Both, again: str | None = None) -> None:
    fitted = trainer(folder, DistoptStrategy("allreduce"), 1, max_epochs=2)
    both = {"a": DataLoader(data(24), 4), "b": DataLoader(data(16), 4)}
    fitted.fit(module, both, ckpt_path=again)


def test_they_are_trained_on(tmp_path: Path) -> None:
    module = Both()
    fit_both(tmp_path, module)
    assert len(module.seen) == 2 * 2 * 24


def test_a_run_that_was_stopped_within_an_epoch_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        fit_both(tmp_path, Both(stop=2))
    with pytest.raises(InputError, match="within an epoch, and has 2 loaders of train"):
        fit_both(tmp_path, Both(), "hpc")


def test_they_share_no_work_queue() -> None:
    place: Any = SimpleNamespace(epoch_is_over=False, loaders=2)
    loader = QueuedLoader(DataLoader(data(), 4), lambda: place, lambda _: [])
    with pytest.raises(InputError, match="2 loaders of training cannot share a work q"):
        next(iter(loader))
