"""The results of collectives: what the tensors of all learners become.

Nothing here takes virtual time, and all results are those of one process.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Barrier,
    Broadcast,
)
from espnet_distopt.core.membership import Meeting, Members

Gathering = AllReduceMean | Broadcast | AllToAll | AllGather | Barrier


def results_of(effects: Sequence[Gathering], members: Members) -> list[Any]:
    """Return the result of each learner.

    Args:
        effects: the collective as each learner has yielded it, in the order of ranks.
        members: the members that have taken part.
    """
    match effects[0]:
        case Barrier():
            pausing = any(isinstance(e, Barrier) and e.pausing for e in effects)
            return [Meeting(pausing, members)] * len(effects)
        case AllToAll():
            tensors = _tensors(effects)
            return _deliver(effects, torch.stack(tensors, 1))
        case AllGather():
            everything = torch.stack(_tensors(effects))
            return _deliver(effects, [everything.clone() for _ in effects])
        case AllReduceMean():
            return _overwrite(effects, mean=True)
        case Broadcast():
            return _overwrite(effects, mean=False)


def _deliver(effects: Sequence[Any], results: Iterable[Tensor]) -> list[Tensor]:
    """Write the result of each learner to the tensor `into` of its effect, if any."""
    delivered = []
    for effect, result in zip(effects, results, strict=True):
        place = result if effect.into is None else effect.into.copy_(result)
        if isinstance(effect, AllToAll) and effect.arrived is not None:
            effect.arrived(place.shape[1])
        delivered.append(place)
    return delivered


def _overwrite(effects: Sequence[Gathering], mean: bool) -> list[Any]:
    tensors = _tensors(effects)
    if len(tensors) == 1:
        return tensors
    if mean:
        result = torch.stack(tensors).sum(0).div_(len(tensors))
    else:
        result = tensors[0].clone()
    return [tensor.copy_(result) for tensor in tensors]


def _tensors(effects: Sequence[Any]) -> list[Tensor]:
    return [effect.tensor for effect in effects]


def check_equal(ranks: Sequence[int], effects: Sequence[Gathering]) -> None:
    """Check that learners have yielded collectives of one kind and shape.

    Raises:
        RuntimeError: they have not.
    """
    kinds = [kind_of(effect) for effect in effects]
    for rank, kind in zip(ranks, kinds, strict=True):
        if kind != kinds[0]:
            raise RuntimeError(
                f"learner {ranks[0]} has come to {kinds[0]}, learner {rank} to {kind}: "
                "all learners must yield the same collectives in the same order"
            )


def kind_of(effect: Gathering) -> str:
    """Return a phrase that says which collective it is, of which tensor."""
    name = type(effect).__name__
    if isinstance(effect, Barrier):
        return name
    return f"{name} of {effect.tensor.dtype} {tuple(effect.tensor.shape)}"
