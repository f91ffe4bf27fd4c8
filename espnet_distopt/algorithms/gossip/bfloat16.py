"""Exchanges in bfloat16: half the bytes of `adpsgd` and `hadpsgd`.

bfloat16 has 8 bits of precision: too few for weights, enough for what has changed in
them. Every learner holds the same reference, bit for bit: learner 0's start, then the
consensus at the end of each epoch. What a learner sends of its copy s is

    q = bfloat16(s - reference)                                  (rounded to nearest)

Both ends of an exchange move by (q_peer - q_own) / 2, with the very same two q's:
corrections are exact negatives, and the mean over the learners is conserved as with
float32. So rounding biases nothing; it makes learners differ by up to 2^-8 of what has
changed. Error feedback and stochastic rounding, which keep rounded *gradients* from a
bias, have none to mend here, and add noise where learners agree.

Cost: n / 2 bytes an exchange for n bytes of float32 parameters. Memory: P elements, and
two messages of half their size.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import Exchange, RunInBackground
from espnet_distopt.errors import InputError

CHECKED = 4
"""Bytes behind each message, which tell whether both ends have one reference."""


class Rounded:
    """What one learner sends of its parameters, rounded to bfloat16.

    Attributes:
        reference: (P,) the same bits on every learner.

    Args:
        like: (P,) the parameters; empty where there is nobody to exchange with.
    """

    def __init__(self, like: Tensor) -> None:
        self.reference = like.detach().clone()
        self._size = like.numel()
        self._sent = like.new_zeros(self._size + CHECKED, dtype=torch.bfloat16)
        self._received = torch.empty_like(self._sent)
        self.refer_to(like)

    def refer_to(self, reference: Tensor) -> None:
        """Take a new reference, which all learners take before the next exchange."""
        if self._size == 0:
            return
        self.reference.copy_(reference)
        width = self.reference.element_size()
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
        digest = int(self.reference.view(bits).sum(dtype=torch.int64)) % 2**32
        self._sent[self._size :] = self._sent.new_tensor(list(digest.to_bytes(CHECKED)))

    def swap(
        self, peer: int, copy: Tensor
    ) -> Generator[RunInBackground | Exchange, Any, tuple[Tensor, Tensor]]:
        """Exchange `copy` (P,) with `peer`; return what was received, and sent.

        Both lack the reference. They are valid until the next exchange.

        Raises:
            InputError: the peer has another reference.
        """
        sent = self._sent[: self._size]
        yield RunInBackground(lambda: self._round(copy, sent))
        received = yield Exchange(peer, self._sent, self._received)
        if not torch.equal(received[self._size :], self._sent[self._size :]):
            raise InputError(
                f"learner {peer} and this one round against different models, because "
                "they were resumed from different states; resume all from the end of "
                "the same epoch, or use exchange: float32"
            )
        return received[: self._size], sent

    def _round(self, copy: Tensor, sent: Tensor) -> None:
        for q, s, reference in cache_blocks(sent, copy, self.reference):
            q.copy_(s - reference)
