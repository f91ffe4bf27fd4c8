"""Averages of blocks with fewer bytes: learners send what a block has changed.

All learners know the start of a block, theta_init, bit for bit. So they can send their
changes since then, with less precision than the parameters need, and add the mean of
the changes to the start.

**bfloat16** (`exchange: bfloat16`, half the bytes). 8 bits of precision are too coarse
for weights and moments, but fine enough for what a block has changed in them. Learner i
sends its change, rounded to nearest:

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
m_0. `local_sgd` keeps theta_init for this, and averaged moments keep theirs: one tensor
(P,) for each.

**The largest changes** (`keep`). At the end of a block learner i adds its update to
what it has not sent yet, sends the k largest of each 256 elements in 8 bits, and
remembers the rest (error feedback):

    a_i       = e_i + (theta_i - theta_init)
    s_i       = Q(top_k(a_i))
    e_i       = a_i - s_i
    theta_bar = theta_init + (1/N) sum_j s_j

So no update is lost: the s_i of all blocks and e_i add up to all updates of learner i,
to rounding. Each learner receives all s_j, as the same bytes, and adds them in the
order of ranks, so that theta_bar has the same bits on all of them.

    paper                       here
    TOP-k within chunks         `encode`, with chunks of `CHUNK` elements
    Q, 2 bits                   8 bits: 255 multiples of a 127th of a chunk's largest
    error feedback, decay beta  `CompressedAverage.error`, with beta = 1

Source: SparseLoCo (arXiv 2508.15706). There beta < 1 takes the place of outer momentum;
here nothing decays, and momentum is that of the block filter.

SparseLoCo sends more values, in 2 bits. At equal bytes that was no better here (+0.1 %
(-3.0 to +3.3) with 16 learners, +1.3 % (-0.6 to +3.1) with 4; commit 8962cb5).

Cost of `keep`: each learner sends P (2 + 2k) / 256 bytes to each other one. That is
3P (N - 1) / 64 bytes a block where k is 5, and an average in full precision takes
8P (N - 1) / N. Memory: P elements, P more for the start of the block unless the block
filter has it, and two vectors while a block ends.
"""

import math
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.part import Part
from espnet_distopt.core.effects import AllGather, AllReduceMean, Effect, Program, Ranks

CHUNK = 256
"""The elements of a chunk, so that a place in it is one byte."""

Start = Callable[[], Tensor]
"""Returns what changes of a tensor in a block are relative to (P,), on all learners
alike. Whoever calls it must not overwrite the result."""


def average_changes(tensor: Tensor, start: Start, ranks: Ranks) -> Program:
    """Overwrite `tensor` (P,) by the start plus the mean change, sent in bfloat16.

    Args:
        tensor: what a block has made of the start.
        start: the block's start, which is computed twice rather than kept.
        ranks: the learners that take part; None means all.
    """
    message = (tensor - start()).to(torch.bfloat16)
    yield AllReduceMean(message, ranks)
    torch.add(start(), message.to(tensor.dtype), out=tensor)


_NUMBER = torch.bfloat16
_LARGEST = 127


def kept_of_chunk(keep: float) -> int:
    """Return k, how many elements of a chunk are sent for the share `keep`."""
    return max(1, round(keep * CHUNK))


def bytes_of_chunk(keep: float) -> int:
    """Return the bytes of a chunk: those of k places, k values and the largest one."""
    return 2 * kept_of_chunk(keep) + _NUMBER.itemsize


def encode(update: Tensor, kept: int) -> Tensor:
    """Return the largest elements of each chunk as bytes.

    They are the largest ones of all chunks, the values, which are multiples of a 127th
    of it, and the places (C kept,) of these. A chunk with an element that is not finite
    decodes to one that is not finite, so that a learner which has diverged is seen by
    all.

    Args:
        update: the chunks (C, CHUNK).
        kept: the number of elements that are sent of each chunk.
    """
    places = update.abs().topk(kept, dim=1, sorted=False).indices
    values = update.gather(1, places)
    largest = values.abs().amax(1, keepdim=True).to(_NUMBER)
    steps = largest.to(values.dtype) / _LARGEST
    codes = (values / steps).nan_to_num_(0.0).round_()  # Of zeros it is 0 / 0.
    codes = codes.clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    parts = largest.view(torch.uint8), codes.view(torch.uint8), places.to(torch.uint8)
    return torch.cat([part.reshape(-1) for part in parts])


def add_decoded(message: Tensor, kept: int, total: Tensor) -> None:
    """Add what `encode` has made `message` of to `total` (C, CHUNK), in place."""
    chunks = len(total)
    sizes = [chunks * _NUMBER.itemsize, chunks * kept, chunks * kept]
    head, codes, places = torch.split(message, sizes)
    # A message may begin at an odd byte of what was gathered, hence a copy.
    steps = head.clone().view(_NUMBER).view(chunks, 1).to(total.dtype) / _LARGEST
    values = codes.view(torch.int8).view(chunks, kept).to(total.dtype).mul_(steps)
    total.scatter_add_(1, places.view(chunks, kept).long(), values)


class CompressedAverage:
    """Averages parameters over all learners by their largest changes since the start.

    Attributes:
        error: what this learner has not sent yet (P,).

    Args:
        part: the parameters.
        keep: the share of the elements that is sent, see `kept_of_chunk`.
    """

    def __init__(self, part: Part, keep: float) -> None:
        self._rank, size = part.rank, part.params.numel()
        self._kept = kept_of_chunk(keep)
        self._chunks = part.params.new_zeros(math.ceil(size / CHUNK), CHUNK)
        self.error = self._chunks.view(-1)[:size]

    def average(self, params: Tensor, start: Start) -> Generator[Effect, Any, None]:
        """Overwrite `params` (P,), which a block has led to, by their mean."""
        self.error.add_(params - start())
        message = encode(self._chunks, self._kept)
        decoded = torch.zeros_like(self._chunks)
        add_decoded(message, self._kept, decoded)
        self._chunks.sub_(decoded)
        # What was sent of the padding behind the last element is an error of nothing.
        self._chunks.view(-1)[len(params) :] = 0
        messages: Tensor = yield AllGather(message)
        decoded.zero_()
        for each in messages:
            add_decoded(each, self._kept, decoded)
        params.copy_(decoded.div_(len(messages)).view(-1)[: len(params)])
        params.add_(start())

    def state_dict(self) -> dict[str, Any]:
        """Return what this learner has not sent."""
        return {"rank": self._rank, "error": self.error.clone()}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore what `state_dict` has returned.

        A learner that takes over the state of another one has everything to send: what
        the other has not sent yet is the other's.

        Args:
            state: the state; None if averages had full precision when it was saved.
        """
        self.error.zero_()
        if state is not None and state["rank"] == self._rank:
            self.error.copy_(state["error"])
