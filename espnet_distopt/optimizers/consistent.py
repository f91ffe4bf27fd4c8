"""Lets an optimizer of Adam's family divide by the second moment of the whole batch.

The optimizer's own step is left as it is: for the time of the step it is lent another
second moment, such that it arrives at vN (see `second_moment`), and afterwards it gets
its own back, which has followed the gradients meanwhile. So learning rates, weight
decay, the rectification of RAdam and the look-ahead of NAdam stay the optimizer's, and
its state is the one that it has without the correction, with one moment more.

That suits an optimizer whose step is linear in the gradients but for the division by
the root of v: then the mean of N learners' steps is the step of the mean gradient, once
they all divide by what the mean gradient's v would be. Adam, AdamW, NAdam and RAdam are
such. AMSGrad is not, because the maximum of v remembers noise, and neither is LAMB,
whose steps have a length of their own: noise lengthens the update that it normalizes.

Cost: one more moment (P elements, in the optimizer's state, saved and loaded with it),
P elements more while the optimizer steps, and one pass over eight tensors of that size,
where Adam's own step passes over seven.
"""

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam

from espnet_distopt.core.cache_blocks import PIECE, cache_blocks
from espnet_distopt.optimizers.second_moment import NEVER, Shared, to_lend

NOISE = "noise_sq"
"""The key of s in the optimizer's state of a parameter."""

SHARED = "noise_shared"
"""The key of what the last average of first moments has left, see `second_moment`."""

SQUARES = "exp_avg_sq"
"""The key of v in the optimizer's state of a parameter."""

FAMILY = (Adam, AdamW, NAdam, RAdam)

CHUNK = 1 << 20
"""Elements that are worked on at a time: temporary tensors are no larger."""

GPU_CHUNK = 1 << 24
"""The same on a GPU, where each chunk costs the launch of some operations."""


def can_correct(optimizer: Optimizer) -> bool:
    """Return whether the second moment of `optimizer` can be corrected.

    That of a class with a step of its own is not known, whatever the class inherits.
    """
    known = {inspect.unwrap(kind.step) for kind in FAMILY}
    return (
        isinstance(optimizer, FAMILY)
        and inspect.unwrap(type(optimizer).step) in known
        and all(map(_is_known, optimizer.param_groups))
    )


def _is_known(group: dict[str, Any]) -> bool:
    """Return whether a group's second moment is a plain moving average.

    In 16 bits it is none: 0.999 v is rounded to v there.
    """
    variants = ("amsgrad", "capturable", "differentiable")
    precise = all(p.dtype in (torch.float32, torch.float64) for p in group["params"])
    return precise and group["betas"][1] > 0 and not any(map(group.get, variants))


def correct(
    optimizer: Optimizer, batches: int, warns: bool = True
) -> "ConsistentSecondMoment | None":
    """Correct the steps of `optimizer` from now on, if it is known and there is need.

    Args:
        optimizer: the optimizer of one learner.
        batches: the number of batches whose mean the learners' average takes.
        warns: whether to log that the optimizer is not known. SGD divides by nothing,
            and needs no warning.

    Returns:
        The correction, to be closed; None if there is none.
    """
    if batches == 1 or isinstance(optimizer, SGD):
        return None
    if can_correct(optimizer):
        return ConsistentSecondMoment(optimizer, batches)
    if warns:
        logging.getLogger(__name__).warning(
            f"second_moment: consistent is not known for this "
            f"{type(optimizer).__name__} (Adam, AdamW, NAdam and RAdam in float32, "
            "without amsgrad and capturable): what it divides its steps by stays that "
            "of each learner's own batches; second_moment: local says nothing of it"
        )
    return None


class ConsistentSecondMoment:
    """Corrects every step of an optimizer, from its construction to `close`.

    Attributes:
        batches: the number of batches whose mean the learners' average takes, N. It may
            change between two steps, to 1 as well: the noise is followed all the same.

    Args:
        optimizer: an optimizer for which `can_correct` holds.
        batches: N at first, above 1.
    """

    def __init__(self, optimizer: Optimizer, batches: int) -> None:
        assert can_correct(optimizer)
        assert batches > 1
        self.batches = batches
        self._own: list[tuple[dict[str, Any], Tensor]] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._take_back),
        ]

    def close(self) -> None:
        """Leave no hook behind; the optimizer keeps its state."""
        self._take_back()
        for handle in self._handles:
            handle.remove()

    def _before(
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Have the step call its closure first, if it has one, and then `_lend`.

        The optimizer calls a closure when all hooks have run, so that these gradients
        are the ones that it uses, whoever computes or clips them.
        """
        kwargs = dict(kwargs)
        # the first argument is the optimizer itself
        closure = args[1] if len(args) > 1 else kwargs.pop("closure", None)

        def lend_too() -> Any:
            loss = None if closure is None else closure()
            self._lend(optimizer)
            return loss

        return (args[0], lend_too, *args[2:]), kwargs

    @torch.no_grad()
    def _lend(self, optimizer: Optimizer) -> None:
        """Follow the gradients, and lend the second moment for one step."""
        self._take_back()  # A step that has failed may have left something.
        if _is_skipped(optimizer):
            return
        for group, parameters in _chunks(optimizer):
            states = [optimizer.state[p] for p in parameters]
            gradients = _gradients(optimizer, group, parameters)
            ages = list(zip(_steps(states), _shared(states), strict=True))
            for age in set(ages):
                if age[0] == 0:  # Before the first update no mean is there to differ.
                    continue
                alike = [n for n, each in enumerate(ages) if each == age]
                self._lend_to(
                    group,
                    [states[n] for n in alike],
                    [gradients[n] for n in alike],
                    age,
                )

    def _lend_to(
        self,
        group: dict[str, Any],
        states: list[dict[str, Any]],
        gradients: list[Tensor],
        age: tuple[float, Shared],
    ) -> None:
        b1, b2 = map(float, group["betas"])
        step, shared = age
        for state in states:
            if NOISE not in state:
                state[NOISE] = torch.zeros_like(state[SQUARES])
        squares, noise = _of(states, SQUARES), _of(states, NOISE)
        lent = [torch.empty_like(own) for own in squares]
        means = _of(states, "exp_avg")
        for w, v, s, m, g in _pieces(lent, squares, noise, means, gradients):
            to_lend(w, v, s, m, g, step, (b1, b2), self.batches, shared)
        for state, own, other in zip(states, squares, lent, strict=True):
            self._own.append((state, own))
            state[SQUARES] = other

    def _take_back(self, *_: Any) -> None:
        """Give the optimizer its own second moment back."""
        for state, own in self._own:
            state[SQUARES] = own
        self._own.clear()


def _gradients(
    optimizer: Optimizer, group: dict[str, Any], parameters: list[Tensor]
) -> list[Tensor]:
    """Return the gradients that the moments follow: with L2 decay, unscaled."""
    found = [p.grad for p in parameters if p.grad is not None]
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        found = list(torch._foreach_div(found, scale))
    if group.get("maximize"):
        found = list(torch._foreach_neg(found))
    if group["weight_decay"] and not _decouples(optimizer, group):
        found = list(torch._foreach_add(found, parameters, alpha=group["weight_decay"]))
    return found


def _decouples(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Return whether weight decay stays out of the moments, as in AdamW."""
    return isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay"))


def _chunks(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], list[Tensor]]]:
    """Yield the parameters that have gradients, about `CHUNK` elements at a time."""
    for group in optimizer.param_groups:
        chunk: list[Tensor] = []
        size = 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            chunk.append(parameter)
            size += parameter.numel()
            if size >= (CHUNK if parameter.device.type == "cpu" else GPU_CHUNK):
                yield group, chunk
                chunk, size = [], 0
        if chunk:
            yield group, chunk


def _pieces(*lists: list[Tensor]) -> Iterator[tuple[list[Tensor], ...]]:
    """Yield the same elements of all lists: on a CPU in pieces that stay in the cache.

    There the passes over a piece cost a third of those over a large tensor. Many small
    tensors, as those of a conformer, are one piece, because each call costs time, too.
    A GPU gets the lists as they are: launching more operations costs more there.
    """
    if lists[0][0].device.type != "cpu":
        yield lists
        return
    small: list[tuple[Tensor, ...]] = []
    size = 0
    for tensors in zip(*lists, strict=True):
        if tensors[0].numel() < PIECE:
            small.append(tensors)
            size += tensors[0].numel()
            if size >= PIECE:
                yield _transposed(small)
                small, size = [], 0
        elif all(tensor.is_contiguous() for tensor in tensors):
            for pieces in cache_blocks(*(tensor.view(-1) for tensor in tensors)):
                yield tuple([piece] for piece in pieces)
        else:
            yield tuple([tensor] for tensor in tensors)
    if small:
        yield _transposed(small)


def _transposed(rows: list[tuple[Tensor, ...]]) -> tuple[list[Tensor], ...]:
    return tuple(map(list, zip(*rows, strict=True)))


def _steps(states: list[dict[str, Any]]) -> list[float]:
    """Return the number of updates of some parameters, 0 where there was none yet.

    A fused optimizer may keep it on a GPU, and to ask for each one would wait each
    time: so they are fetched together.
    """
    zero = torch.zeros(())
    known = [state["step"] for state in states if "step" in state]
    if len(known) == len(states):
        fetched: list[float] = torch.stack(known).tolist()
        return fetched
    return [float(state.get("step", zero)) for state in states]


def _shared(states: list[dict[str, Any]]) -> list[Shared]:
    """Return the last average of first moments of some parameters."""
    return [state.get(SHARED, NEVER) for state in states]


def _is_skipped(optimizer: Optimizer) -> bool:
    """Return whether a fused optimizer has found its gradients infinite."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _of(states: list[dict[str, Any]], name: str) -> list[Tensor]:
    return [state[name] for state in states]
