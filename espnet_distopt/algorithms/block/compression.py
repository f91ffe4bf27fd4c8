"""The average of a block with fewer bytes: learners send their largest changes alone.

All learners have the start of a block, theta_init, in common. At its end learner i adds
its update to what it has not sent yet, sends the k largest of each 256 elements in 8 or
2 bits (see `quantization`), and remembers the rest (error feedback):

    a_i       = e_i + (theta_i - theta_init)
    s_i       = Q(top_k(a_i))
    e_i       = a_i - s_i
    theta_bar = theta_init + (1/N) sum_j s_j

So no update is lost: the s_i of all blocks and e_i add up to all updates of learner i,
to rounding. Each learner receives all s_j, as the same bytes, and adds them in the
order of ranks, so that theta_bar has the same bits on all of them.

    paper                       here
    TOP-k within chunks         `encode`, with chunks of `CHUNK` elements
    Q, 2 bits                   8 or 2 bits, see `quantization`
    error feedback, decay beta  `error`, with beta = 1

Source: SparseLoCo (arXiv 2508.15706). There beta < 1 takes the place of outer momentum;
here nothing decays, and momentum is that of the block filter.

Cost: each learner sends P (2 + 2k) / 256 bytes to each other one, or P (4 + 5k / 4) /
256 in 2 bits. That is 3P (N - 1) / 64 bytes a block in 8 bits where k is 5, and an
average in full precision takes 8P (N - 1) / N. Memory: P elements, P more for the start
of the block unless the block filter has it, and two vectors while a block ends.
"""

import math
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.block_start import BlockStart
from espnet_distopt.algorithms.block.part import Part
from espnet_distopt.algorithms.block.quantization import QUANTIZERS
from espnet_distopt.core.effects import AllGather, Effect

CHUNK = 256
"""The elements of a chunk, so that a place in it is one byte."""


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

    def average(
        self, params: Tensor, start: BlockStart
    ) -> Generator[Effect, Any, None]:
        """Overwrite `params` (P,), which a block has led to, by their mean.

        Args:
            params: the parameters at the end of the block.
            start: the block's start, equal on all learners.
        """
        self._add_update(params, start)
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
        start.add_to(params)

    def _add_update(self, params: Tensor, start: BlockStart) -> None:
        """Add this learner's update to what it has not sent yet."""
        update = params.clone()
        start.subtract_from(update)
        self.error.add_(update)

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
