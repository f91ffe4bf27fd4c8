"""The start of a block, without a copy of it where it can be computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks


@dataclass(frozen=True, eq=False)
class BlockStart:
    """What changes of a tensor in a block are relative to, on all learners alike.

    It is `base` + `ahead` `delta`, or a multiple of `base`. The tensors are those of
    the filter or of the moments, so that it is valid until they change.

    Attributes:
        base: tensor (P,).
        delta: tensor (P,); None means that there is none.
        ahead: the factor of `delta`.
        factors: the factors of `base`, each for a slice, which cover all elements.
    """

    base: Tensor
    delta: Tensor | None = None
    ahead: float = 0.0
    factors: Sequence[tuple[slice, float]] = ((slice(None), 1.0),)

    def changes(self, tensor: Tensor) -> Tensor:
        """Return `tensor` (P,) minus the start, in bfloat16."""
        message = torch.empty_like(tensor, dtype=torch.bfloat16)
        for start, q, x in self._pieces(message, tensor):
            q.copy_(x - start)
        return message

    def plus(self, message: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the start plus `message` (P,), which is in bfloat16.

        Args:
            message: changes since the start.
            out: tensor (P,) that is overwritten by the result; None makes a new one.
        """
        result = torch.empty_like(self.base) if out is None else out
        for start, q, x in self._pieces(message, result):
            # One addition of mixed types takes several times as long.
            torch.add(start, q.to(x.dtype), out=x)
        return result

    def subtract_from(self, tensor: Tensor) -> None:
        """Subtract the start from `tensor` (P,), in place."""
        for start, x in self._pieces(tensor):
            x.sub_(start)

    def add_to(self, tensor: Tensor) -> None:
        """Add the start to `tensor` (P,), in place."""
        for start, x in self._pieces(tensor):
            x.add_(start)

    def _pieces(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield pieces of the start with the same elements of all `tensors` (P,)."""
        for part, factor in self.factors:
            operands = [self.base, *tensors]
            operands += [] if self.delta is None else [self.delta]
            for base, *pieces in cache_blocks(*(tensor[part] for tensor in operands)):
                if self.delta is not None:  # As the filter has computed it.
                    yield base.add(pieces.pop(), alpha=self.ahead), *pieces
                else:
                    yield base if factor == 1 else base * factor, *pieces
