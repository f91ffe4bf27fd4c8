"""All-to-all and all-gather as messages between all pairs, and work beside them.

gloo's own send whole vectors, and its all-gather takes longer than its all-reduce. Here
vectors are cut into messages: while some are under way, the algorithm works on what has
just come, or on what goes next. A GPU's tensors take the group's collectives.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.distributed.groups import Group

TAG = 13
"""Of these messages; those of a pair arrive in the order of their posting."""

MESSAGE = 1 << 22
"""Bytes of a message, at most: of shorter ones, each wait costs too much."""

AHEAD = 1
"""Pieces under way beside the one that is worked on."""

Report = Callable[[int], None] | None

Complete = Callable[[Any], None]
"""Waits for the work of a GPU's collective (`collectives.Collectives`)."""


def all_to_all(
    group: Group, tensor: Tensor, into: Tensor, arrived: Report, complete: Complete
) -> None:
    """Carry out `effects.AllToAll`."""
    if tensor.is_cuda:
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        complete(group.alltoall_base(received, tensor.contiguous(), [], []))
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

    _send_pieces(tensor, post, arrived)


def all_gather(
    group: Group, tensor: Tensor, into: Tensor, prepare: Report, complete: Complete
) -> None:
    """Carry out `effects.AllGather`."""
    if tensor.is_cuda:
        if prepare is not None:
            prepare(len(tensor))
        received = torch.empty_like(into, memory_format=torch.contiguous_format)
        complete(group._allgather_base(received.view(-1), tensor.contiguous()))
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

    _send_pieces(tensor, post, None)


def _send_pieces(
    tensor: Tensor, post: Callable[[int, int], list[Any]], arrived: Report
) -> None:
    """Post piece after piece; wait for each when `AHEAD` more are posted."""
    under_way: deque[tuple[int, list[Any]]] = deque()
    for start, stop in _pieces(tensor):
        under_way.append((stop, post(start, stop)))
        if len(under_way) > AHEAD:
            _complete(under_way, arrived)
    while under_way:
        _complete(under_way, arrived)


def _pieces(tensor: Tensor) -> Generator[tuple[int, int], None, None]:
    """Yield the bounds of pieces of the last dimension; at least one, if empty."""
    width, length = MESSAGE // tensor.element_size(), tensor.shape[-1]
    for start in range(0, max(length, 1), width):
        yield start, min(start + width, length)


def _post(group: Group, sent: list[Tensor], received: Tensor) -> list[Any]:
    """Post a message to and from each other learner, the next one first."""
    works: list[Any] = []
    if received.numel() == 0:
        return works
    own, size = group.rank(), group.size()
    for distance in range(1, size):
        source, target = (own - distance) % size, (own + distance) % size
        works.append(group.recv([received[source]], source, TAG))
        works.append(group.send([sent[target]], target, TAG))
    return works


def _complete(under_way: deque[tuple[int, list[Any]]], report: Report) -> None:
    stop, works = under_way.popleft()
    for work in works:
        work.wait()
    if report is not None:
        report(stop)
