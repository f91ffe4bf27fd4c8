"""The average of a block with fewer bytes: learners send their largest changes alone.

All learners have the start of a block, theta_init, in common. At its end learner i adds
its update to what it has not sent yet, sends the k largest of each 256 elements in 8
bits, and remembers the rest (error feedback):

    a_i       = e_i + (theta_i - theta_init)
    s_i       = Q(top_k(a_i))
    e_i       = a_i - s_i
    theta_bar = theta_init + (1/N) sum_j s_j

So no update is lost: the s_i of all blocks and e_i add up to all updates of learner i,
to rounding. Each learner receives all s_j, as the same bytes, and adds them in the
order of ranks, so that theta_bar has the same bits on all of them.

    paper                       here
    TOP-k within chunks         `encode`, with chunks of `CHUNK` elements
    Q, 2 bits                   8 bits, relative to the largest element of the chunk
    error feedback, decay beta  `error`, with beta = 1

Source: SparseLoCo (arXiv 2508.15706). There beta < 1 takes the place of outer momentum;
here nothing decays, and momentum is that of the block filter.

Cost: each learner sends P (2 + 2k) / 256 bytes to each other one, 3P (N - 1) / 64 bytes
a block where k is 5, and an average in full precision takes 8P (N - 1) / N. Memory: 2P
elements, and two more vectors of P elements while a block ends.
"""

import math
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import AllGather, Effect
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

CHUNK = 256
"""The elements of a chunk, so that a place in it is one byte."""

_SCALE = torch.bfloat16
_LARGEST = 127


def kept_of_chunk(keep: float) -> int:
    """Return k, how many elements of a chunk are sent for the share `keep`."""
    return max(1, round(keep * CHUNK))


def encode(update: Tensor, kept: int) -> Tensor:
    """Return the largest elements of each chunk as bytes, (C (2 + 2 kept),).

    The bytes are the scales of all chunks, then the places, then the values. A chunk
    with an element that is not finite decodes to NaN, so that a learner which has
    diverged is seen by all.

    Args:
        update: the chunks (C, CHUNK).
        kept: the number of elements that are sent of each chunk.
    """
    places = update.abs().topk(kept, dim=1, sorted=False).indices
    values = update.gather(1, places)
    scales = values.abs().amax(1, keepdim=True).to(_SCALE)
    steps = _steps(scales, update)
    codes = (values / steps).nan_to_num_(0.0).round_()  # In a chunk of zeros it is 0/0.
    codes = codes.clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    parts = scales.view(torch.uint8), places.to(torch.uint8), codes.view(torch.uint8)
    return torch.cat([part.reshape(-1) for part in parts])


def add_decoded(message: Tensor, kept: int, total: Tensor) -> None:
    """Add what `encode` has made `message` of to `total` (C, CHUNK), in place."""
    count = len(total)
    sizes = [2 * count, kept * count, kept * count]
    scales, places, codes = torch.split(message, sizes)
    steps = _steps(scales.view(_SCALE).view(count, 1), total)
    values = codes.view(torch.int8).view(count, kept).to(total.dtype).mul_(steps)
    total.scatter_add_(1, places.view(count, kept).long(), values)


def _steps(scales: Tensor, like: Tensor) -> Tensor:
    """Return what one step of the 8 bits is worth in each chunk, in `like`'s dtype."""
    return scales.to(like.dtype) / _LARGEST


class CompressedAverage:
    """Averages parameters over all learners by their largest changes since the start.

    Attributes:
        start: the parameters at the start of the block (P,), equal on all learners.
        error: what this learner has not sent yet (P,).

    Args:
        learner: this learner.
        keep: the share of the elements that is sent, see `kept_of_chunk`.
    """

    def __init__(self, learner: Learner, keep: float) -> None:
        self._rank, size = learner.rank, learner.params.numel()
        self._kept = kept_of_chunk(keep)
        self._chunks = learner.params.new_zeros(math.ceil(size / CHUNK), CHUNK)
        self.error = self._chunks.view(-1)[:size]
        self.start = learner.params.detach().clone()

    def begin_block(self, params: Tensor) -> None:
        """Take `params` (P,) as the start of the block."""
        self.start.copy_(params)

    def average(self, params: Tensor) -> Generator[Effect, Any, None]:
        """Overwrite `params` (P,), which a block has led to, by their mean."""
        self.error.add_(params - self.start)
        message = encode(self._chunks, self._kept)
        decoded = torch.zeros_like(self._chunks)
        add_decoded(message, self._kept, decoded)
        self._chunks.sub_(decoded)
        messages: Tensor = yield AllGather(message)
        decoded.zero_()
        for each in messages:
            add_decoded(each, self._kept, decoded)
        mean = decoded.div_(len(messages)).view(-1)[: len(params)]
        torch.add(self.start, mean, out=params)

    def state_dict(self) -> dict[str, Any]:
        """Return the start of the block, and what this learner has not sent."""
        tensors = {"start": self.start.clone(), "error": self.error.clone()}
        return {"rank": self._rank, **tensors}

    def load_state_dict(
        self, state: dict[str, Any] | None, params: Tensor, within: bool
    ) -> None:
        """Restore what `state_dict` has returned.

        A learner that takes over the state of another one has everything to send: what
        the other has not sent yet is the other's.

        Args:
            state: the state; None if averages had full precision when it was saved.
            params: the parameters (P,) that were saved beside it.
            within: whether it was saved within a block.

        Raises:
            InputError: there is no state, and within a block `params` are no start.
        """
        self.error.zero_()
        self.begin_block(params)
        if state is not None:
            self.start.copy_(state["start"] if within else params)
            if state["rank"] == self._rank:
                self.error.copy_(state["error"])
        elif within:
            raise InputError(
                "the state was saved within a block with keep: 1, and what the block "
                "has begun with is not known; resume with keep: 1, or from the end of "
                "an epoch"
            )
