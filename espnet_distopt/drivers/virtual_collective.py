"""The collectives of a simulation: all learners' tensors at once."""

from collections.abc import Sequence

import torch

from espnet_distopt.drivers.cluster import Network
from espnet_distopt.drivers.virtual_learner import Meet
from espnet_distopt.effects import AllReduceMean, Broadcast

Collective = AllReduceMean | Broadcast | Meet


def meet(effects: Sequence[Collective], network: Network) -> tuple[float, int]:
    """Carry out a collective; `effects` are the learners', in the order of ranks.

    Returns its virtual seconds and the bytes that each learner sends.

    Raises:
        RuntimeError: learners have met in different collectives.
    """
    kinds = [_kind(effect) for effect in effects]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise RuntimeError(
                f"learner 0 has come to {kinds[0]}, learner {rank} to {kind}: all "
                "learners must yield the same collectives in the same order"
            )
    tensors = [effect.tensor for effect in effects if not isinstance(effect, Meet)]
    size = len(effects)
    if size == 1 or not tensors:
        return 0.0, 0
    nbytes = tensors[0].nbytes
    if isinstance(effects[0], AllReduceMean):
        result = torch.stack(tensors).sum(0).div_(size)
        cost = network.all_reduce(size, nbytes), 2 * nbytes * (size - 1) // size
    else:
        result = tensors[0].clone()
        cost = network.broadcast(size, nbytes), nbytes
    for tensor in tensors:
        tensor.copy_(result)
    return cost


def _kind(effect: Collective) -> str:
    name = type(effect).__name__
    if isinstance(effect, Meet):
        return name
    return f"{name} of {effect.tensor.dtype} {tuple(effect.tensor.shape)}"
