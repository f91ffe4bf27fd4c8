"""All-to-all and all-gather as messages between two learners, with work beside them.

gloo's own collectives send whole vectors, and its all-gather takes longer than its
all-reduce. Here vectors are cut into pieces. While some pieces are under way, the
algorithm works on those that have just arrived, or prepares those that are sent next.
Tensors on a GPU take the group's own collectives.

A link carries the messages of one learner at a time in each direction. If several
learners send through it at the same time, packets are lost where they meet, and sending
them again takes a fifth of the link's time. So an all-to-all takes turns, in each of
which a learner sends to one other, and an all-gather passes rows around a ring. One
short message to each other learner is sent to all at once, because it takes less time
than turns.
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

The word that a receiver is ready for a piece waits in the queues of the links, which
are full. With more pieces under way, the link has something to carry meanwhile.
"""

Report = Callable[[int], None] | None
"""The algorithm's work beside a collective, `arrived` or `prepare`; None: no work."""

Complete = Callable[[Sequence[Any], bool], None]
"""Waits for operations, given whether they are on a GPU (`collectives.Collectives`)."""

Posted = Generator[tuple[int, list[Any]], None, None]
"""Posts a piece each time, and yields its end and its operations."""


def all_to_all(
    group: Group, tensor: Tensor, into: Tensor, arrived: Report, complete: Complete
) -> None:
    """Carry out `effects.AllToAll`, and return when it is complete.

    The N learners of the group send the rows of `tensor` (N, S), and receive `into`
    (N, S). `arrived` is the algorithm's work on columns that have arrived.
    """
    if tensor.is_cuda:
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        complete([group.alltoall_base(received, tensor.contiguous(), [], [])], True)
        into.copy_(received)
        if arrived is not None:
            arrived(tensor.shape[1])
        return
    own, size, pieces = group.rank(), group.size(), list(_pieces(tensor))

    def turn(distance: int) -> Posted:
        source, target = (own - distance) % size, (own + distance) % size
        for start, stop in pieces:
            sent, received = tensor[target, start:stop], into[source, start:stop]
            works = _post(group, sent, target, received, source)
            if distance == 1:
                into[own, start:stop] = tensor[own, start:stop]
            yield stop, works

    if len(pieces) == 1:
        into[own] = tensor[own]
        _to_all(group, list(tensor), into, complete)
        if arrived is not None:
            arrived(tensor.shape[1])
    else:
        for distance in range(1, size):
            last = distance == size - 1
            _in_order(turn(distance), AHEAD, complete, arrived if last else None)


def all_gather(
    group: Group, tensor: Tensor, into: Tensor, prepare: Report, complete: Complete
) -> None:
    """Carry out `effects.AllGather`, and return when it is complete.

    The N learners of the group send `tensor` (S,), and receive the rows of all `into`
    (N, S). `prepare` is the algorithm's work on elements that are sent next.
    """
    if tensor.is_cuda:
        if prepare is not None:
            prepare(len(tensor))
        received = torch.empty_like(into, memory_format=torch.contiguous_format)
        complete([group._allgather_base(received.view(-1), tensor.contiguous())], True)
        into.copy_(received)
        return
    own, size, pieces = group.rank(), group.size(), list(_pieces(tensor))
    left, right = (own - 1) % size, (own + 1) % size
    row = into[own]

    def prepared(start: int, stop: int) -> None:
        if prepare is not None:
            prepare(stop)
        if row.data_ptr() != tensor.data_ptr():
            row[start:stop] = tensor[start:stop]

    def around_ring() -> Posted:
        for turn in range(size - 1):
            sent, received = into[own - turn], into[left - turn]
            for start, stop in pieces:
                if turn == 0:
                    prepared(start, stop)
                piece = slice(start, stop)
                yield stop, _post(group, sent[piece], right, received[piece], left)

    if len(pieces) == 1:
        prepared(0, len(tensor))
        _to_all(group, [row] * size, into, complete)
    else:
        # A piece is passed on in the next turn, so it must have arrived by then.
        _in_order(around_ring(), min(AHEAD, len(pieces) - 1), complete, None)


def _in_order(posted: Posted, ahead: int, complete: Complete, arrived: Report) -> None:
    """Post piece after piece, and wait for each once `ahead` more have been posted."""
    under_way: deque[tuple[int, list[Any]]] = deque()

    def complete_first() -> None:
        stop, works = under_way.popleft()
        complete(works, False)
        if arrived is not None:
            arrived(stop)

    for piece in posted:
        under_way.append(piece)
        if len(under_way) > ahead:
            complete_first()
    while under_way:
        complete_first()


def _pieces(tensor: Tensor) -> Generator[tuple[int, int], None, None]:
    """Yield the bounds of pieces of the last dimension; an empty one is one piece."""
    width, length = MESSAGE // tensor.element_size(), tensor.shape[-1]
    for start in range(0, max(length, 1), width):
        yield start, min(start + width, length)


def _to_all(
    group: Group, sent: list[Tensor], received: Tensor, complete: Complete
) -> None:
    """Send one message (S,) to each of N learners, and receive their rows (N, S)."""
    if received.numel() == 0:
        return
    own, size = group.rank(), group.size()
    works = []
    for distance in range(1, size):  # Not all send to the same one first.
        source, target = (own - distance) % size, (own + distance) % size
        works += _post(group, sent[target], target, received[source], source)
    complete(works[::2] + works[1::2], False)


def _post(
    group: Group, sent: Tensor, target: int, received: Tensor, source: int
) -> list[Any]:
    """Post a message to `target` and one from `source`, and return these operations.

    The receive comes first, and is waited for first: gloo ends it when a connection
    fails, which it may not do with a send (see `gloo`).
    """
    receive = group.recv([received], source, TAG)
    return [receive, group.send([sent], target, TAG)]
