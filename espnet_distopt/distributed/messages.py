"""All-to-all and all-gather as messages between all pairs, with work beside them.

gloo's own collectives send whole vectors, and its all-gather takes longer than its
all-reduce. Here vectors are cut into pieces. While some pieces are under way, the
algorithm works on those that have just arrived, or prepares those that are sent next.
Tensors on a GPU take the group's own collectives.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.distributed.groups import Group

TAG = 13
"""The tag of these messages. Those of a pair arrive in the order of their posting."""

MESSAGE = 1 << 22
"""The most bytes of a message. With much shorter ones the waits would cost too much."""

AHEAD = 7
"""Number of pieces under way beside the one that is worked on.

The messages of different peers share links unequally. With more of them under way, a
link has something to carry while a piece waits for the last peer.
"""

Report = Callable[[int], None] | None
"""The algorithm's work beside a collective, `arrived` or `prepare`; None: no work."""

Complete = Callable[[Sequence[Any], bool], None]
"""Waits for operations, given whether they are on a GPU (`collectives.Collectives`)."""


def all_to_all(
    group: Group, tensor: Tensor, into: Tensor, arrived: Report, complete: Complete
) -> None:
    """Carry out `effects.AllToAll`, and return when it is complete.

    Args:
        group: the group of its learners, N.
        tensor: the rows to send, (N, S).
        into: the rows received, (N, S).
        arrived: the algorithm's work on columns that have arrived.
        complete: waits for operations.
    """
    if tensor.is_cuda:
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        complete([group.alltoall_base(received, tensor.contiguous(), [], [])], True)
        into.copy_(received)
        if arrived is not None:
            arrived(tensor.shape[1])
        return
    own = group.rank()

    def post(start: int, stop: int) -> list[Any]:
        sent, received = tensor[:, start:stop], into[:, start:stop]
        works = _post(group, list(sent), received)
        received[own].copy_(sent[own])
        return works

    _send_pieces(tensor, post, complete, arrived)


def all_gather(
    group: Group, tensor: Tensor, into: Tensor, prepare: Report, complete: Complete
) -> None:
    """Carry out `effects.AllGather`, and return when it is complete.

    Args:
        group: the group of its learners, N.
        tensor: the row to send, (S,).
        into: the rows of all learners, (N, S).
        prepare: the algorithm's work on elements that are sent next.
        complete: waits for operations.
    """
    if tensor.is_cuda:
        if prepare is not None:
            prepare(len(tensor))
        received = torch.empty_like(into, memory_format=torch.contiguous_format)
        complete([group._allgather_base(received.view(-1), tensor.contiguous())], True)
        into.copy_(received)
        return
    own, size = group.rank(), group.size()

    def post(start: int, stop: int) -> list[Any]:
        if prepare is not None:
            prepare(stop)
        sent, received = tensor[start:stop], into[:, start:stop]
        works = _post(group, [sent] * size, received)
        if sent.data_ptr() != received[own].data_ptr():
            received[own].copy_(sent)
        return works

    _send_pieces(tensor, post, complete, None)


def _send_pieces(
    tensor: Tensor,
    post: Callable[[int, int], list[Any]],
    complete: Complete,
    arrived: Report,
) -> None:
    """Post piece after piece, and wait for each once `AHEAD` more have been posted.

    Args:
        tensor: the tensor whose last dimension is cut into pieces.
        post: posts the sends and receives of a piece [start, stop), and returns them.
        complete: waits for them.
        arrived: the algorithm's work, called with `stop` when a piece has arrived.
    """
    under_way: deque[tuple[int, list[Any]]] = deque()

    def complete_first() -> None:
        stop, works = under_way.popleft()
        complete(works, False)
        if arrived is not None:
            arrived(stop)

    for start, stop in _pieces(tensor):
        under_way.append((stop, post(start, stop)))
        if len(under_way) > AHEAD:
            complete_first()
    while under_way:
        complete_first()


def _pieces(tensor: Tensor) -> Generator[tuple[int, int], None, None]:
    """Yield the bounds of pieces of the last dimension; an empty one is one piece."""
    width, length = MESSAGE // tensor.element_size(), tensor.shape[-1]
    for start in range(0, max(length, 1), width):
        yield start, min(start + width, length)


def _post(group: Group, sent: list[Tensor], received: Tensor) -> list[Any]:
    """Post a message to and from each other learner, and return these operations.

    The order begins with the next rank, so that not all learners send to the same one
    first. The receives are waited for before the sends: gloo ends them when a
    connection fails, which it may not do with a send (see `waiter`).
    """
    if received.numel() == 0:
        return []
    own, size = group.rank(), group.size()
    receives, sends = [], []
    for distance in range(1, size):
        source, target = (own - distance) % size, (own + distance) % size
        receives.append(group.recv([received[source]], source, TAG))
        sends.append(group.send([sent[target]], target, TAG))
    return receives + sends
