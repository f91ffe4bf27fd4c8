"""What runs in the place of Lightning's collectives where learners may die.

Where the others go on without a dead learner, collectives at the end of an epoch are
those of the living. The process group that Lightning makes fails as a whole
with its first dead member. Here a collective in which a learner dies is repeated among
the others, over the session's connections.
"""

import pickle
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from espnet_distopt.core.effects import AllReduceMean, Effect
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session

_OVER_LEARNERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0),
    "avg": lambda rows: rows.mean(0),
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.amax(0),
    "min": lambda rows: rows.amin(0),
    "product": lambda rows: rows.prod(0),
}


class Living:
    """The collectives of all learners that live; each of them calls the same ones.

    Cost: an all-reduce of N times the tensor in float64, for small tensors as metrics.
    The session's algorithm survives deaths.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the learners that took part in the last collective."""
        ranks: tuple[int, ...] = self._session.learner.members.ranks
        return ranks

    @property
    def place(self) -> tuple[int, int]:
        """The place of this learner among the living, from 0, and their number."""
        return self.ranks.index(self._session.learner.rank), len(self.ranks)

    def barrier(self) -> None:
        """Wait for all of them."""
        self._session.barrier()

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the `tensor` (...) of each of them, (living learners, ...)."""
        learner = self._session.learner
        shape = (learner.size, *tensor.shape)
        rows = learner.params.new_zeros(shape, dtype=torch.float64)
        rows[learner.rank] = tensor.detach()
        # The mean of this row and zeros; float64 keeps what it was.
        self._session.driver.run(_mean(rows))
        rows = rows[list(self.ranks)] * len(self.ranks)
        if not tensor.is_floating_point():
            rows = rows.round()
        return rows.to(tensor.device, tensor.dtype)

    def gather_all(self, tensor: Tensor, group: object = None) -> list[Tensor]:
        """Return the `tensor` of each of them; its sizes may differ among learners.

        It is a `dist_sync_fn` of torchmetrics, which means no `group`.
        """
        while True:
            sizes = self.gather(torch.tensor(tensor.shape, dtype=torch.int64))
            ranks, padded = self.ranks, tensor.new_zeros(sizes.amax(0).tolist())
            padded[tuple(map(slice, tensor.shape))] = tensor.detach()
            rows = self.gather(padded)
            if ranks == self.ranks:  # Else one of them has died in between.
                cut = [tuple(map(slice, size)) for size in sizes.tolist()]
                return [row[part] for row, part in zip(rows, cut, strict=True)]

    def reduce(self, tensor: Tensor, op: object = "mean") -> Tensor:
        """Return the sum, mean, maximum, minimum or product over all of them.

        `op` is Lightning's name of the operation, or torch's `ReduceOp`; None: the sum.

        Raises:
            InputError: the operation is another one.
        """
        name = "sum" if op is None else str(op).rpartition(".")[2].lower()
        if name not in _OVER_LEARNERS:
            known = ", ".join(_OVER_LEARNERS)
            raise InputError(f"DistoptStrategy.reduce: op {op!r} is none of {known}")
        rows = self.gather(tensor)
        return _OVER_LEARNERS[name](rows.double()).to(tensor.dtype)

    def broadcast(self, thing: Any, source: int = 0) -> Any:
        """Return learner `source`'s object, which can be pickled.

        Raises:
            PeerLostError: learner `source` has died.
        """
        learner = self._session.learner
        data = pickle.dumps(thing) if learner.rank == source else b""
        length = int(self.reduce(torch.tensor(len(data)), "sum"))
        if not length:
            raise cannot_train_on([source])
        own = torch.zeros(length, dtype=torch.uint8)
        if data:
            own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        said = self.reduce(own, "sum")
        if source not in self.ranks:
            raise cannot_train_on([source])
        return thing if data else pickle.loads(said.numpy().tobytes())


@contextmanager
def shared_metrics(
    module: nn.Module, living: Living | None, is_apart: Callable[[], bool]
) -> Generator[None, None, None]:
    """In the body, let metrics of torchmetrics gather as Lightning's collectives do.

    By themselves they gather over torch's default process group, which waits for
    learners within an epoch, and fails with its first dead member. Metrics that were
    told how to gather do so.

    Args:
        module: the metrics are those among its submodules.
        living: the collectives of all who live; None leaves those of torch.
        is_apart: says that no collective may run now.
    """
    found = [m for m in module.modules() if isinstance(m, Metric)]
    own = [m for m in found if m.dist_sync_fn is None and m.process_group is None]
    before = [metric.distributed_available_fn for metric in own]
    for metric, available in zip(own, before, strict=True):
        metric.distributed_available_fn = lambda a=available: not is_apart() and a()
        metric.dist_sync_fn = living.gather_all if living else None
    try:
        yield
    finally:
        for metric, available in zip(own, before, strict=True):
            metric.distributed_available_fn, metric.dist_sync_fn = available, None


def cannot_train_on(lost: Sequence[int]) -> PeerLostError:
    """Return the error of a fit that needs learners who have died."""
    why = ", which logs and saves" if 0 in lost else ""
    return PeerLostError(
        f"Lightning cannot train on without learner {', '.join(map(str, lost))}{why}: "
        "fit(ckpt_path=...) goes on from the last checkpoint"
    )


def _mean(tensor: Tensor) -> Generator[Effect, Any, None]:
    yield AllReduceMean(tensor)
