"""A learner's batches of an epoch, as Lightning's loop reads them.

Lightning asks the strategy to process each loader of training. The strategy puts a
`LearnerLoader` in its place, which begins where the learner was stopped. Where learners
step alone, and the loader has numbered batches, it is a `QueuedLoader`: the learners'
shares of an epoch are those of stock Lightning, but if a learner falls behind, others
that have finished theirs take batches from it. So all learners must number the same
batches, and draw the same random numbers for that.

An ESPnet3 module divides its batches itself, and meets the other learners in each step;
the last part takes both out.
"""

import hashlib
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from espnet_distopt.core.loaders import with_batches
from espnet_distopt.errors import InputError
from espnet_distopt.files.random_state import random_state, set_random_state
from espnet_distopt.lightning.fit import Fit
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue

Batches = Sequence[Sequence[Any]]
"""The indices of the samples of each batch."""


def of_learner(
    loader: Any, trainer: pl.Trainer, queued: bool, fit: Callable[[], Fit | None]
) -> Any:
    """Return the loader of training in which this learner begins where it was stopped.

    Args:
        loader: what Lightning iterates over otherwise, or what `of_espnet3` returned.
        trainer: Lightning's.
        queued: whether learners take batches of training from a work queue.
        fit: returns the fit; None before it begins.
    """
    if isinstance(loader, Uncut):
        return QueuedLoader(loader.loader, fit, lambda _: loader.batches)
    sampler = shares_sampler(loader, trainer.world_size) if queued else None
    if sampler is None:
        if queued:
            strategy: Any = trainer.strategy
            rank_zero_warn(
                f"{strategy.algorithm}: the batches of this loader are divided "
                "once and for all: epochs end with the slowest learner"
            )
        return LearnerLoader(loader, fit)
    # A resumed fit reads its first batch before Lightning counts the epoch that has
    # ended, so that `trainer.current_epoch` is still that one.
    epochs: Any = trainer.fit_loop.epoch_progress

    def of_all(seed: int) -> Batches:
        return batches_of_all(loader, sampler, epochs.current.processed, seed)

    return QueuedLoader(loader, fit, of_all)


class LearnerLoader:
    """A loader whose first epoch may begin within; all else is the loader's own."""

    def __init__(self, loader: Any, fit: Callable[[], Fit | None]) -> None:
        self.__dict__.update(_loader=loader, _fit=fit)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __iter__(self) -> Iterator[Any]:
        fit = self._fit()
        position = fit.take_position() if fit is not None else None
        if fit is None or position is None:
            if fit is not None:
                fit.began = random_state()
            yield from self._loader
            return
        if fit.loaders > 1:
            raise InputError(
                f"DistoptStrategy: the run was stopped within an epoch, and has "
                f"{fit.loaders} loaders of training, of which each was elsewhere: go "
                "on from the checkpoint of an epoch's end (ckpt_path=...)"
            )
        # A loader draws random numbers when it begins, and must draw the same ones.
        set_random_state(position["began"])
        fit.began = position["began"]
        batches: Iterator[Any] = iter(())
        if not position["ended"]:
            batches = without_first(self._loader, position["batches"])
        set_random_state(position["random"])
        yield from batches


def without_first(loader: Any, count: int) -> Iterator[Any]:
    """Return an iterator over `loader` without its first batches.

    A `DataLoader` with a map-style dataset does not read them; others have to.
    """
    if not has_numbered_batches(loader):
        return islice(iter(loader), count, None)
    return iter(with_batches(loader, batches_of(loader)[count:]))


def has_numbered_batches(loader: Any) -> bool:
    """Return whether any learner can load any batch of the loader, by its samples."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )


class _Indices(Dataset[Any]):
    """A dataset whose samples are their own indices."""

    def __getitem__(self, index: Any) -> Any:
        return index


def batches_of(loader: DataLoader[Any]) -> Batches:
    """Return the indices of all batches of the loader's next epoch, reading none.

    It draws the same random numbers as the loader itself would.
    """
    indices: DataLoader[Any] = DataLoader(
        _Indices(),
        batch_sampler=loader.batch_sampler,
        collate_fn=lambda batch: batch,
        generator=loader.generator,
    )
    return list(indices)


# Batches from a work queue


def shares_sampler(loader: Any, size: int) -> DistributedSampler[Any] | None:
    """Return what divides the loader's samples among so many learners, if known."""
    if not has_numbered_batches(loader):
        return None
    sampler = getattr(loader.batch_sampler, "sampler", None)
    known = isinstance(sampler, DistributedSampler) and sampler.num_replicas == size
    return sampler if known else None


def batches_of_all(
    loader: DataLoader[Any], sampler: DistributedSampler[Any], epoch: int, seed: int
) -> Batches:
    """Return the batches of all learners in an epoch, `in_turn`.

    A sampler that the learners' one wraps, as a `SubsetRandomSampler`, draws a new
    order each time. It draws each share from the same seed, which all learners have:
    the shares are disjoint. The loader has the share of this learner.
    """
    sampler.set_epoch(epoch)
    wrapped = getattr(sampler.dataset, "_sampler", None)
    own, shares = sampler.rank, []
    for rank in range(sampler.num_replicas):
        sampler.rank = rank
        with seeded(seed, loader, loader.batch_sampler, wrapped):
            shares.append(batches_of(loader))
    sampler.rank = own
    return in_turn(shares)


def in_turn(shares: Sequence[Batches]) -> Batches:
    """Return all batches: the first of each learner, then the second of each, and on.

    A learner that has fewer than others is left out in the end.
    """
    turns = zip_longest(*shares)
    return [batch for turn in turns for batch in turn if batch is not None]


class QueuedBatches:
    """The batches that one learner takes from the work queue of an epoch.

    All learners construct it together, at the beginning of the epoch.

    They are those of all learners, `in_turn`. Where K learners step together, they
    train on K of them at a time, an item of the queue; the last ones are repeated to
    fill that. The state is what `state_dict` has returned; None at the beginning.
    """

    def __init__(
        self,
        session: Session,
        loader: DataLoader[Any],
        batches: Batches,
        state: dict[str, Any] | None = None,
    ) -> None:
        learner = session.learner
        ranks = session.algorithm.lockstep(learner)
        self._session, self._loader, self._batches = session, loader, batches
        self._together, self._place = len(ranks), ranks.index(learner.rank)
        self._taken: list[int] = []
        self.queue = WorkQueue(session, -(-len(batches) // len(ranks)), state)

    def __iter__(self) -> Iterator[Any]:
        chosen: list[Sequence[Any]] = []
        loader = with_batches(self._loader, chosen, again=True)

        def load(items: Sequence[int]) -> Iterable[tuple[int, Any]]:
            chosen[:] = map(self._indices, items)
            return zip(items, loader, strict=True)

        for item, batch in self.queue.read(load):
            self._taken.append(item)
            yield batch

    def _indices(self, item: int) -> Sequence[Any]:
        number = item * self._together + self._place
        return self._batches[number % len(self._batches)]

    def state_dict(self, begun: int) -> dict[str, Any]:
        """Return what is left to do; all learners call this, and none is training.

        This one has begun so many batches. Lightning has read one more, which nobody
        trains on before the run is resumed.
        """
        self.queue.put_back(self._taken[begun:])
        self._session.barrier()
        return self.queue.state_dict()


class QueuedLoader(LearnerLoader):
    """A loader of training whose batches come from a work queue.

    It has no length once a fit has begun, because nobody knows how many batches a
    learner will take; before that, its length is that of an equal share. For the seed
    of an epoch, `batches` returns those of all learners, `in_turn`.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        fit: Callable[[], Fit | None],
        batches: Callable[[int], Batches],
    ) -> None:
        super().__init__(loader, fit)
        self.__dict__.update(_batches=batches)

    def __len__(self) -> int:
        if self._fit() is not None:
            raise TypeError("a learner takes as many batches as it can")
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        fit = self._fit()
        assert fit is not None
        if fit.epoch_is_over:
            return  # Lightning reads ahead before it knows that it will not train.
        if fit.loaders > 1:
            raise InputError(
                f"DistoptStrategy: {fit.loaders} loaders of training cannot share a "
                "work queue: give work_queue=False, or one loader that has all"
            )
        position = fit.take_position()
        if position is not None:
            set_random_state(position["began"])
        fit.began = random_state()
        of_all = self._batches(agreed_seed(fit.session))
        check_equal(fit.session, of_all)
        state = position["queue"] if position else None
        batches = QueuedBatches(fit.session, self._loader, of_all, state)
        fit.begin_queue(
            batches.queue, batches.state_dict, position["scheduled"] if position else []
        )
        if position is not None:
            set_random_state(position["random"])
        if position is None or not position["ended"]:
            yield from batches


# Random draws that are the same on all learners, whatever their own random states


def agreed_seed(session: Session) -> int:
    """Return a seed that all learners have; they call this together.

    It follows from their random states, so that a run that goes on draws it again.
    """
    drawn = int(torch.randint(2**31, ()))
    return int(session.mean(float(drawn)))


@contextmanager
def seeded(seed: int, *owners: object) -> Generator[None, None, None]:
    """Inside, random numbers follow from a seed; after it, all is as it was before.

    The owners may have a `generator` of their own, which is seeded, too.
    """
    own = random_state()
    had = (getattr(owner, "generator", None) for owner in owners)
    generators = [each for each in had if isinstance(each, torch.Generator)]
    states = [each.get_state() for each in generators]
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for each in generators:
        each.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(own)
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)


def check_equal(session: Session, batches: Sequence[Any]) -> None:
    """Raise InputError, on every learner, unless all of them have the same batches."""
    digest = hashlib.sha256(repr(batches).encode()).digest()
    number = float(int.from_bytes(digest[:2], "big"))
    mean, square = session.means([number, number**2])
    # The variance of N whole numbers that are not equal is at least (N - 1) / N**2.
    if square - mean**2 > 1e-4:
        raise InputError(
            f"learner {session.learner.rank}: the learners' loaders have different "
            "batches: give all of them the same dataset, and the same samples to their "
            "samplers (a random split needs a seed)"
        )


# ESPnet3


def _is(thing: object, name: str) -> bool:
    """Return whether `thing` is of a class of this name; ESPnet3 may be missing."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)


def free_of_barriers(module: pl.LightningModule) -> None:
    """Let an ESPnet3 module step by itself; leave any other module as it is."""
    if _is(module, "ESPnetLightningModule"):
        config: Any = module.config
        config.num_device = 1


@dataclass(frozen=True)
class Uncut:
    """Batches that all learners are to take from a work queue, and what reads them."""

    loader: Any
    batches: Batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def of_espnet3(
    iterator: Any,
    trainer: pl.Trainer,
    queued: bool,
    place: tuple[int, int] | None = None,
) -> Any:
    """Return this learner's batches of an ESPnet3 iterator, or a loader as it is.

    Args:
        iterator: ESPnet3's iterator of all batches, or any loader.
        trainer: Lightning's.
        queued: whether learners take batches of training from a work queue.
        place: that of this learner among those that validate, from 0, and their number;
            None: all learners do.
    """
    if not _is(iterator, "EpochSyncIterator"):
        return iterator
    source = iterator._source
    source = source() if callable(source) else source
    rank, size = place or (trainer.global_rank, trainer.world_size)
    part = "train" if trainer.training else "valid"
    config: Any = trainer.lightning_module.config
    if size == 1 or config.dataloader[part].get("batch_distribution") == "global":
        return source  # Each batch is divided already.
    if not has_numbered_batches(source):
        raise InputError(
            "the batches of this iter_factory have no numbers, and DistoptStrategy "
            "cannot divide them among learners: use SequenceIterFactory"
        )
    batches = batches_of(source)
    if not trainer.training:
        # Validation needs a batch on each learner; none is dropped.
        return with_batches(source, batches[rank::size] or batches)
    if queued:
        return Uncut(source, batches)
    # Learners that step together need equally many batches.
    return with_batches(source, batches[: len(batches) // size * size][rank::size])
