"""All learners must train the same model in the same way: they compare what they have.

Before anything else is sent. What does not fit would otherwise be noticed late, by a
collective that fails, and be blamed on the network or on a learner that does well.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from espnet_distopt.core.effects import AllGather, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.model_buffers import named_untrained
from espnet_distopt.errors import InputError

Items = list[tuple[str, str]]
"""What is compared, and how it is here."""


def items(
    model: nn.Module, learner: Learner, algorithm: str, options: Mapping[str, Any]
) -> Items:
    """Return all in which learners must be equal, in an order that they share."""
    given = ", ".join(f"{name}={options[name]!r}" for name in sorted(options))
    found = [("the algorithm", algorithm), ("the algorithm's options", given or "none")]
    for name, slot in zip(learner.names, learner.slots, strict=True):
        kind = _kind(slot.shape, learner.params.dtype)
        found.append((f"parameter '{name}'", f"{kind} in group {slot.group}"))
    # what one learner trains and another has frozen then stands in one place
    buffers = {name for name, _ in model.named_buffers()}
    untrained = named_untrained(model, learner).items()
    for name, tensor in sorted(untrained, key=lambda item: item[0] in buffers):
        what = f"'{name}', which is not trained,"
        found.append((what, _kind(tensor.shape, tensor.dtype)))
    return found


def _kind(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"


def agree(found: Items, learner: Learner) -> Program:
    """Compare `found` with that of all learners. Cost: 16 bytes to each.

    Raises:
        InputError: they are not all equal; on every learner.
    """
    parts = [_digest(*item) for item in found]
    whole = _digest(*map(str, parts))
    gathered: Tensor = yield AllGather(torch.tensor([whole, len(found)]))
    if (gathered == gathered[0]).all():
        return
    if (gathered[:, 1] != gathered[0, 1]).any():
        other = _other(learner.rank, gathered[:, 1])
        raise InputError(
            f"learner {learner.rank} has {len(found) - 2} parameters and buffers, "
            f"learner {other} has {int(gathered[other, 1]) - 2}: all learners must "
            "train the same model"
        )
    each: Tensor = yield AllGather(torch.tensor(parts))
    place = int((each != each[0]).any(0).nonzero()[0])
    what, here = found[place]
    raise InputError(
        f"learner {learner.rank}: {what} is {here}, and not so on learner "
        f"{_other(learner.rank, each[:, place])}: all learners must have the same "
        "model, parameter groups, algorithm and options"
    )


def _digest(*words: str) -> int:
    """Return 64 bits that are the same in every process."""
    digest = hashlib.sha256("\n".join(words).encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


def _other(rank: int, values: Tensor) -> int:
    """Return whom to name: learner 0 to who differs from it, to others who does."""
    if values[rank] != values[0]:
        return 0
    return int((values != values[0]).nonzero()[0])
