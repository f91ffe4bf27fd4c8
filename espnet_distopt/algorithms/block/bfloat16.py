"""Averages of blocks in bfloat16, which take half the bytes.

bfloat16 has 8 bits of precision. That is too coarse for weights and moments, but fine
enough for what a block has changed in them. All learners know the start of the block,
theta_init, bit for bit. So learner i sends its change, rounded to nearest, and all
learners add the mean of these changes to the start:

    q_i       = bfloat16(theta_i - theta_init)
    theta_bar = theta_init + (1/N) sum_j q_j

Of a moment with decay b learners send what the gradients of the block have added to it.
tau is the period:

    q_i       = bfloat16(m_i - b^tau m_0)
    m_bar     = b^tau m_0 + (1/N) sum_j q_j

So the second moment stays above b^tau v_0, and where gradients have vanished, both
moments decay as they should. The change m_i - m_0 would then be as large as m_0 itself,
and rounding it would leave a first moment that is large beside the root of the second.

Rounding to nearest is as often up as down, and its error is a share of the change (2^-8
at most): no change is lost because it is small beside the weight. Backends add in
bfloat16, too, and so round once more for each learner that is added.

Start points need no memory where the block filter has theta and Delta, and moments have
m_0. `local_sgd` keeps theta_init for this, and averaged moments keep theirs.

Cost: half the bytes of an average in float32, and two passes more. Memory: one more
tensor (P,) for each start point that is not kept otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import AllReduceMean, Program, Ranks


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


def average_changes(tensor: Tensor, start: BlockStart, ranks: Ranks) -> Program:
    """Overwrite `tensor` (P,) by the start plus the mean change of all learners.

    Args:
        tensor: what a block has made of the start.
        start: its start.
        ranks: the learners that take part; None means all.
    """
    message = start.changes(tensor)
    yield AllReduceMean(message, ranks)
    start.plus(message, out=tensor)
