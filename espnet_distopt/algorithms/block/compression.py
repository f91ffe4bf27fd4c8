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
what it has not sent yet, sends the k largest of each 256 elements in 8 or 2 bits, and
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
    Q, 2 bits                   8 or 2 bits, see `QUANTIZERS`
    error feedback, decay beta  `CompressedAverage.error`, with beta = 1

Source: SparseLoCo (arXiv 2508.15706). There beta < 1 takes the place of outer momentum;
here nothing decays, and momentum is that of the block filter.

A quantizer writes a few bfloat16 numbers for each chunk, then a code for each value:

    bits  numbers of a chunk                  a value v becomes
    8     its largest |v|                     one of 255 multiples of a 127th of it
    2     the means of the |v| up to their    the mean of its half, with the sign of v
          mean, and of those above it

In two bits a few outliers do not coarsen the rest of their chunk, because they have a
mean of their own. The mean square error is the variance of the |v| about the means of
the two halves, so that it is never larger than that of sending nothing. SparseLoCo
finds 2 bits enough; how the four values are chosen here is our own.

Cost of `keep`: each learner sends P (2 + 2k) / 256 bytes to each other one, or
P (4 + 5k / 4) / 256 in 2 bits. That is 3P (N - 1) / 64 bytes a block in 8 bits where
k is 5, and an average in full precision takes 8P (N - 1) / N. Memory: P elements, P
more for the start of the block unless the block filter has it, and two vectors while a
block ends.
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
_PLACES = (0, 2, 4, 6)
"""Where the four codes of two bits begin in a byte."""


class EightBits:
    """Steps of a 127th of the largest value of a chunk."""

    def nbytes(self, kept: int) -> float:
        """Return the bytes of a chunk: its largest value, and one for each code."""
        return 2 + kept

    def write(self, values: Tensor) -> Tensor:
        """Return the largest values of all chunks, and then the codes, as bytes.

        A chunk of `values` (C, k) with one that is not finite is read as not finite.
        """
        largest = values.abs().amax(1, keepdim=True).to(_NUMBER)
        steps = largest.to(values.dtype) / _LARGEST
        codes = (values / steps).nan_to_num_(0.0).round_()  # Of zeros it is 0 / 0.
        codes = codes.clamp_(-_LARGEST, _LARGEST).to(torch.int8)
        parts = largest.view(torch.uint8), codes.view(torch.uint8)
        return torch.cat([part.reshape(-1) for part in parts])

    def read(self, message: Tensor, like: Tensor) -> Tensor:
        """Return the values in the shape and the dtype of `like` (C, k)."""
        largest, codes = _split(message, len(like))
        steps = largest.to(like.dtype) / _LARGEST
        return codes.view(torch.int8).view(like.shape).to(like.dtype).mul_(steps)


class TwoBits:
    """The sign of a value, and one of two means of its chunk."""

    def nbytes(self, kept: int) -> float:
        """Return the bytes of a chunk: two means, and a quarter for each code."""
        return 4 + kept / 4

    def write(self, values: Tensor) -> Tensor:
        """Return the two means of all chunks, and then the codes, four in a byte.

        A chunk of `values` (C, k) with one that is not finite is read as not finite.
        """
        sizes = values.abs()
        above = sizes > sizes.mean(1, keepdim=True)
        means = torch.cat([_mean(sizes, ~above), _mean(sizes, above)], 1).to(_NUMBER)
        codes = (above + 2 * (values < 0)).to(torch.uint8).reshape(-1)
        missing = -len(codes) % len(_PLACES)
        fours = torch.nn.functional.pad(codes, (0, missing)).view(-1, len(_PLACES))
        packed = (fours << fours.new_tensor(_PLACES)).sum(1, dtype=torch.uint8)
        return torch.cat([means.view(torch.uint8).reshape(-1), packed])

    def read(self, message: Tensor, like: Tensor) -> Tensor:
        """Return the values in the shape and the dtype of `like` (C, k)."""
        means, packed = _split(message, len(like), numbers=2)
        codes = packed[:, None] >> packed.new_tensor(_PLACES) & 3
        codes = codes.view(-1)[: like.numel()].view(like.shape)
        values = torch.cat([means, -means], 1).to(like.dtype)
        return values.gather(1, codes.long())


QUANTIZERS: dict[int, EightBits | TwoBits] = {8: EightBits(), 2: TwoBits()}
"""The quantizers by the bits of a value."""


def _split(message: Tensor, chunks: int, numbers: int = 1) -> tuple[Tensor, Tensor]:
    """Return the numbers of all chunks (C, `numbers`), and the bytes of the codes."""
    count = chunks * numbers * _NUMBER.itemsize
    # A message may begin at an odd byte of what was gathered, hence a copy.
    head, codes = message[:count].clone(), message[count:]
    return head.view(_NUMBER).view(chunks, numbers), codes


def _mean(sizes: Tensor, among: Tensor) -> Tensor:
    """Return the mean of each row (C, 1) over some of its elements; 0 if over none."""
    total = sizes.where(among, 0.0).sum(1, keepdim=True)
    return total / among.sum(1, keepdim=True).clamp_(min=1)


def kept_of_chunk(keep: float) -> int:
    """Return k, how many elements of a chunk are sent for the share `keep`."""
    return max(1, round(keep * CHUNK))


def bytes_of_chunk(keep: float, bits: int) -> float:
    """Return the bytes that a chunk takes: those of k places, and of k values."""
    kept = kept_of_chunk(keep)
    return kept + QUANTIZERS[bits].nbytes(kept)


def encode(update: Tensor, kept: int, bits: int = 8) -> Tensor:
    """Return the largest elements of each chunk as bytes.

    They are those of the values, and then the places, (C kept,). A chunk with an
    element that is not finite decodes to one that is not finite, so that a learner
    which has diverged is seen by all.

    Args:
        update: the chunks (C, CHUNK).
        kept: the number of elements that are sent of each chunk.
        bits: the bits of a value, 8 or 2.
    """
    places = update.abs().topk(kept, dim=1, sorted=False).indices
    values = QUANTIZERS[bits].write(update.gather(1, places))
    return torch.cat([values, places.to(torch.uint8).reshape(-1)])


def add_decoded(message: Tensor, kept: int, total: Tensor, bits: int = 8) -> None:
    """Add what `encode` has made `message` of to `total` (C, CHUNK), in place."""
    count = kept * len(total)
    places = message[-count:].view(len(total), kept).long()
    values = QUANTIZERS[bits].read(message[:-count], total[:, :kept])
    total.scatter_add_(1, places, values)


class CompressedAverage:
    """Averages parameters over all learners by their largest changes since the start.

    Attributes:
        error: what this learner has not sent yet (P,).

    Args:
        part: the parameters.
        keep: the share of the elements that is sent, see `kept_of_chunk`.
        bits: the bits of a value, 8 or 2.
    """

    def __init__(self, part: Part, keep: float, bits: int = 8) -> None:
        self._rank, size = part.rank, part.params.numel()
        self._kept, self._bits = kept_of_chunk(keep), bits
        self._chunks = part.params.new_zeros(math.ceil(size / CHUNK), CHUNK)
        self.error = self._chunks.view(-1)[:size]

    def average(self, params: Tensor, start: Start) -> Generator[Effect, Any, None]:
        """Overwrite `params` (P,), which a block has led to, by their mean."""
        self.error.add_(params - start())
        message = encode(self._chunks, self._kept, self._bits)
        decoded = torch.zeros_like(self._chunks)
        add_decoded(message, self._kept, decoded, self._bits)
        self._chunks.sub_(decoded)
        # What was sent of the padding behind the last element is an error of nothing.
        self._chunks.view(-1)[len(params) :] = 0
        messages: Tensor = yield AllGather(message)
        decoded.zero_()
        for each in messages:
            add_decoded(each, self._kept, decoded, self._bits)
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
