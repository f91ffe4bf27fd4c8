"""A learner's batches from a work queue, for learners that do not step together.

The learners' shares of an epoch are those of stock Lightning. But if a learner falls
behind, others that have finished theirs take batches from it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from espnet_distopt.core.loaders import with_batches
from espnet_distopt.errors import InputError
from espnet_distopt.files.random_state import random_state, set_random_state
from espnet_distopt.lightning.equal_draws import agreed_seed, check_equal, seeded
from espnet_distopt.lightning.loading import (
    Batches,
    LearnerLoader,
    Place,
    batches_of,
    has_numbered_batches,
)
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue

READ_AHEAD = 4
"""The number of batches that a learner takes from another at a time, for each process
that reads its data; each reads two batches ahead."""


def shares_sampler(loader: Any, size: int) -> DistributedSampler[Any] | None:
    """Return what divides the samples of the loader among learners, if that is known.

    Args:
        loader: the loader with the share of this learner.
        size: number of learners.
    """
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
    order each time. It draws each share from the same seed: the shares are disjoint.

    Args:
        loader: the loader with the share of this learner.
        sampler: what divides the samples.
        epoch: the number of the epoch, from 0.
        seed: that of the epoch, the same on all learners.
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

    Args:
        shares: the batches of each learner. One that has fewer than others is left out
            in the end.
    """
    turns = zip_longest(*shares)
    return [batch for turn in turns for batch in turn if batch is not None]


class QueuedBatches:
    """The batches that one learner takes from the work queue of an epoch.

    All learners construct it together, at the beginning of the epoch.

    Args:
        session: the session of this learner.
        loader: reads batches.
        batches: the batches of all learners, `in_turn`. Where K learners step together,
            they train on K of them at a time; the last ones are repeated to fill that.
        state: what `state_dict` has returned; None at the beginning.

    Attributes:
        queue: the work queue, whose items are the batches, K at a time.
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
        self.queue = WorkQueue(
            session,
            -(-len(batches) // len(ranks)),
            max(1, READ_AHEAD * loader.num_workers),
            state,
        )

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

        Args:
            begun: the number of batches that this learner has trained on. Lightning has
                read one more, which nobody trains on before the run is resumed.
        """
        state = self.queue.state_dict()
        read = self._taken[begun:]
        mean = self._session.mean(float(len(read)))
        state["held"] = [*read, *state["held"]]
        state["started"] -= round(mean * self.queue.groups)
        return state


class QueuedLoader(LearnerLoader):
    """A loader of training whose batches come from a work queue.

    It has no length once a fit has begun, because nobody knows how many batches a
    learner will take; before that, its length is that of an equal share.

    Args:
        loader: the loader, which has numbered batches.
        place: returns where this learner is in the fit; None before the fit begins.
        batches: takes the seed of the epoch that begins, and returns the batches of all
            learners, `in_turn`.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        place: Callable[[], Place | None],
        batches: Callable[[int], Batches],
    ) -> None:
        super().__init__(loader, place)
        self.__dict__.update(_batches=batches)

    def __len__(self) -> int:
        if self._place() is not None:
            raise TypeError("a learner takes as many batches as it can")
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        place = self._place()
        assert place is not None
        if place.epoch_is_over:
            return  # Lightning reads ahead before it knows that it will not train.
        if place.loaders > 1:
            raise InputError(
                f"DistoptStrategy: {place.loaders} loaders of training cannot share a "
                "work queue: give work_queue=False, or one loader that has all"
            )
        position = place.take_position()
        if position is not None:
            set_random_state(position["began"])
        place.begin_loading(random_state())
        of_all = self._batches(agreed_seed(place.session))
        check_equal(place.session, of_all)
        state = position["queue"] if position else None
        batches = QueuedBatches(place.session, self._loader, of_all, state)
        place.begin_queue(batches, position["scheduled"] if position else [])
        if position is not None:
            set_random_state(position["random"])
        if position is None or not position["ended"]:
            yield from batches
