"""What cannot be trained by a session, and is refused before anything is changed.

Each refusal is local: learners with the same configuration all make the same one.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, Optimizer

from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


def check_model(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise InputError for a model that something else already distributes."""
    for name, module in model.named_modules():
        where = f"module '{name}'" if name else "the model"
        if _is(module, "DistributedDataParallel"):
            raise InputError(
                f"{where} is wrapped in DistributedDataParallel, which averages "
                "gradients itself: pass model.module"
            )
        if _is(module, "FullyShardedDataParallel"):
            raise InputError(
                f"{where} is wrapped in FullyShardedDataParallel; a learner needs the "
                "whole model: pass the module without the wrapper"
            )
    for tensor in _tensors(model, optimizer):
        if _is(tensor, "DTensor"):
            raise InputError(
                "the model has DTensor parameters (fully_shard or distribute_tensor); "
                "a learner needs the whole model: pass it before it is sharded"
            )
        if is_lazy(tensor):
            raise InputError(
                "the model has lazy modules without shapes yet: run a batch through it "
                "before the session is made"
            )
    check_eps(optimizer)


def _tensors(model: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for group in optimizer.param_groups:
        yield from group["params"]


def _is(thing: object, name: str) -> bool:
    """Return whether `thing` is of a class of this name; its module may be missing."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)


def check_eps(optimizer: Optimizer) -> None:
    """Raise InputError if what keeps the optimizer from dividing by 0 is 0 itself.

    Adam's 1e-8 is 0 in float16: a parameter whose gradient vanishes, or whose square
    does, becomes 0 / 0. Fused optimizers divide in float32.
    """
    for group in optimizer.param_groups:
        eps = group.get("eps")
        if not isinstance(eps, float) or eps == 0 or group.get("fused"):
            continue
        for dtype in {p.dtype for p in group["params"] if p.requires_grad}:
            if dtype.is_floating_point and torch.tensor(eps, dtype=dtype) == 0:
                raise InputError(
                    f"{type(optimizer).__name__}'s eps of {eps:g} is 0 in {dtype}, so "
                    "that it divides by 0: keep float32 parameters and use autocast"
                )


class Trainer(Protocol):
    """What a refusal asks of an algorithm, see `algorithms.base.Algorithm`."""

    wants_gradients: bool
    equal_steps: bool

    def lockstep(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks that step together with this one."""


def check_algorithm(
    name: str, algorithm: Trainer, learner: Learner, model: nn.Module
) -> None:
    """Raise InputError for a model or optimizer that `algorithm` cannot train."""
    if learner.size == 1:
        return
    if algorithm.wants_gradients and isinstance(learner.optimizer, LBFGS):
        raise InputError(
            f"{name} averages gradients in every backward pass, and LBFGS makes as "
            "many of them in a step as it finds fit, so that learners would wait for "
            "each other: use an algorithm that averages models (local_sgd, bmuf)"
        )
    everybody = tuple(range(learner.size))
    together = algorithm.equal_steps and algorithm.lockstep(learner) == everybody
    if not together and (found := _first_synchronised(model)) is not None:
        raise InputError(
            f"module '{found}' is a SyncBatchNorm, which waits for all learners in "
            f"every forward pass; with {name} they make unequal numbers of them: use "
            "BatchNorm (a consensus averages its statistics), or allreduce"
        )


def _first_synchronised(model: nn.Module) -> str | None:
    norms = (n for n, m in model.named_modules() if isinstance(m, nn.SyncBatchNorm))
    return next(norms, None)
