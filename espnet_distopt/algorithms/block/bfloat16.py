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

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.block_start import BlockStart
from espnet_distopt.core.effects import AllReduceMean, Program, Ranks


def average_changes(tensor: Tensor, start: BlockStart, ranks: Ranks) -> Program:
    """Overwrite `tensor` (P,) by the start plus the mean change of all learners.

    Args:
        tensor: what a block has made of the start.
        start: its start.
        ranks: the learners that take part; None means all.
    """
    message = torch.empty_like(tensor, dtype=torch.bfloat16)
    start.changes(tensor, message)
    yield AllReduceMean(message, ranks)
    start.plus(message, out=tensor)
