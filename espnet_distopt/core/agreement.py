"""Learners agree that all of them train the same model in the same way.

They compare their algorithms, options and tensors before they send anything else. A
difference would otherwise be noticed late, by a collective that fails, and the message
would blame the network or a learner that has done nothing wrong.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espnet_distopt.core.effects import AllGather, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.model_buffers import named_untrained
from espnet_distopt.errors import InputError

Items = list[tuple[str, str]]
"""The things that must be equal, each with its value on this learner, in words."""


def items(
    model: nn.Module, learner: Learner, algorithm: str, options: Mapping[str, Any]
) -> Items:
    """Return all in which learners must be equal, in the same order on all of them."""
    found = [("the algorithm", algorithm), ("the optimizer", _kept(learner.optimizer))]
    found += [(f"option '{name}'", repr(options[name])) for name in sorted(options)]
    for name, slot in zip(learner.names, learner.slots, strict=True):
        kind = _kind(slot.shape, learner.params.dtype)
        found.append((f"parameter '{name}'", f"{kind} in group {slot.group}"))
    # Frozen parameters come before buffers: so a parameter that one learner trains and
    # another has frozen stands in the same place on both.
    buffers = {name for name, _ in model.named_buffers()}
    untrained = named_untrained(model, learner).items()
    for name, tensor in sorted(untrained, key=lambda item: item[0] in buffers):
        what = f"'{name}', which is not trained,"
        found.append((what, _kind(tensor.shape, tensor.dtype)))
    return found


def _kept(optimizer: Optimizer) -> str:
    """Return an optimizer's class and what it keeps, not its rates, in words.

    Schedules change rates, and learners may be at different places in theirs.
    """
    kept = [
        name
        for name in ("amsgrad", "momentum")
        if any(group.get(name) for group in optimizer.param_groups)
    ]
    return " with ".join([type(optimizer).__qualname__, *kept])


def _kind(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"


def agree(found: Items, learner: Learner) -> Program:
    """Compare `found` with that of all learners. Cost: 24 bytes to each learner.

    Raises:
        InputError: the learners are not all equal. Every learner raises it.
    """
    parts = [_digest(*item) for item in found]
    whole = _digest(*map(str, parts))
    ways = ("the algorithm", "the optimizer", "option")
    tensors = sum(not what.startswith(ways) for what, _ in found)
    gathered: Tensor = yield AllGather(torch.tensor([whole, parts[0], tensors]))
    if (gathered == gathered[0]).all():
        return
    # Another algorithm has other options, and their number would differ, too.
    if (gathered[:, 1] != gathered[0, 1]).any():
        raise _differs(found[0], learner.rank, gathered[:, 1])
    if (gathered[:, 2] != gathered[0, 2]).any():
        other = _differing_rank(learner.rank, gathered[:, 2])
        raise InputError(
            f"learner {learner.rank} has {tensors} parameters and buffers, learner "
            f"{other} has {int(gathered[other, 2])}: all learners must train the same "
            "model"
        )
    each: Tensor = yield AllGather(torch.tensor(parts))
    place = int((each != each[0]).any(0).nonzero()[0])
    raise _differs(found[place], learner.rank, each[:, place])


def _differs(item: tuple[str, str], rank: int, digests: Tensor) -> InputError:
    what, here = item
    other = _differing_rank(rank, digests)
    return InputError(
        f"learner {rank}: {what} is {here}, and not so on learner {other}: all "
        "learners must have the same model, parameter groups, optimizer, algorithm and "
        "options"
    )


def _digest(*words: str) -> int:
    """Return a digest of 64 bits, which is the same in every process."""
    digest = hashlib.sha256("\n".join(words).encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


def _differing_rank(rank: int, values: Tensor) -> int:
    """Return the rank of a learner to name in the message of learner `rank`.

    A learner that differs from learner 0 names learner 0. The others name the first
    learner that differs from learner 0.
    """
    if values[rank] != values[0]:
        return 0
    return int((values != values[0]).nonzero()[0])
