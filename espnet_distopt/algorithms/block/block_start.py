"""The start of a block, without a copy of it where it can be computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks, room_for_piece


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
        dtype: the precision of the start, if `base` is kept in a lower one.
    """

    base: Tensor
    delta: Tensor | None = None
    ahead: float = 0.0
    factors: Sequence[tuple[slice, float]] = ((slice(None), 1.0),)
    dtype: torch.dtype | None = None

    def changes(self, tensor: Tensor, out: Tensor) -> None:
        """Write `tensor` (P,) minus the start to `out` (P,), which is in bfloat16."""
        room = room_for_piece(tensor)
        for part, start in self.pieces():
            change = torch.sub(tensor[part], start, out=room[: len(start)])
            out[part].copy_(change)

    def plus(self, message: Tensor, out: Tensor) -> None:
        """Write the start plus `message` (P,), which is in bfloat16, to `out` (P,)."""
        room = room_for_piece(out)
        for part, start in self.pieces():
            # One addition of mixed types takes several times as long.
            change = room[: len(start)].copy_(message[part])
            torch.add(start, change, out=out[part])

    def subtract_from(self, tensor: Tensor) -> None:
        """Subtract the start from `tensor` (P,), in place."""
        for part, start in self.pieces():
            tensor[part].sub_(start)

    def add_to(self, tensor: Tensor) -> None:
        """Add the start to `tensor` (P,), in place."""
        for part, start in self.pieces():
            tensor[part].add_(start)

    def pieces(self, within: slice = slice(None)) -> Iterator[tuple[slice, Tensor]]:
        """Yield the start in pieces that stay in the cache: their place, and the piece.

        A piece is valid until the next one, and must not be overwritten.

        Args:
            within: the elements that are asked for.
        """
        room = room_for_piece(self.base, self.dtype)
        first, last, _ = within.indices(len(self.base))
        for whole, factor in self.factors:
            begin, end, _ = whole.indices(len(self.base))
            place, end = max(begin, first), min(end, last)
            if place >= end:
                continue
            operands = [self.base] + ([] if self.delta is None else [self.delta])
            for kept, *ahead in cache_blocks(*(t[place:end] for t in operands)):
                part = slice(place, place := place + len(kept))
                piece = room[: len(kept)]
                if ahead:  # As the filter has computed it.
                    yield part, torch.add(kept, ahead[0], alpha=self.ahead, out=piece)
                elif factor == 1 and kept.dtype == piece.dtype:
                    yield part, kept
                else:
                    yield part, piece.copy_(kept).mul_(factor)
