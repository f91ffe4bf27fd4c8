"""Exchanges in bfloat16, which take half the bytes of `adpsgd` and `hadpsgd`.

bfloat16 has 8 bits of precision. That is too coarse for weights, but fine enough for
the change of the weights since a reference model. All learners hold the same reference,
bit for bit: at first learner 0's parameters, and from the end of each epoch on its
consensus model. Of its snapshot s a learner sends

    q = bfloat16(s - reference)                                  (rounded to nearest)

Both learners of an exchange move by (q_peer - q_own) / 2, computed from the same two
messages q. So the two corrections are exact negatives of each other, and the mean over
the learners is conserved as with float32. Rounding therefore causes no bias; it only
makes the two learners differ by up to 2^-8 of the change since the reference. Error
feedback and stochastic rounding keep rounded *gradients* free of bias. Here there is no
bias, and they would add noise where learners agree.

Cost: n / 2 bytes an exchange for n bytes of float32 parameters. Memory: P elements for
the reference, two messages of half that size, and P more while a message is made.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import Exchange, RunInBackground
from espnet_distopt.errors import InputError

CHECKED = 4
"""Bytes of the checksum behind each message: both learners compare their references."""


class Rounded:
    """The bfloat16 messages that one learner exchanges, and their reference.

    Attributes:
        reference: the model (P,) that messages are relative to; it has the same bits on
            every learner.

    Args:
        like: the parameters (P,), which are the first reference; an empty tensor if
            there is no learner to exchange with.
    """

    def __init__(self, like: Tensor) -> None:
        self.reference = like.detach().clone()
        self._size = like.numel()
        self._sent = like.new_zeros(self._size + CHECKED, dtype=torch.bfloat16)
        self._received = torch.empty_like(self._sent)
        self.refer_to(like)

    def refer_to(self, reference: Tensor) -> None:
        """Copy a new reference (P,); all learners do so before the next exchange."""
        if self._size == 0:
            return
        self.reference.copy_(reference)
        width = self.reference.element_size()
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
        digest = int(self.reference.view(bits).sum(dtype=torch.int64)) % 2**32
        self._sent[self._size :] = self._sent.new_tensor(list(digest.to_bytes(CHECKED)))

    def swap(
        self, peer: int, copy: Tensor
    ) -> Generator[RunInBackground | Exchange, Any, tuple[Tensor, Tensor] | None]:
        """Exchange `copy` (P,) with `peer`; return the messages received and sent.

        Both messages (P,) are relative to the reference, in bfloat16. They are valid
        until the next exchange. The result is None if the exchange was dropped.

        Raises:
            InputError: the peer has another reference.
        """
        sent = self._sent[: self._size]
        yield RunInBackground(lambda: sent.copy_(copy - self.reference))
        received = yield Exchange(peer, self._sent, self._received)
        if received is None:
            return None
        if not torch.equal(received[self._size :], self._sent[self._size :]):
            raise InputError(
                f"learner {peer} and this one round against different models, because "
                "they were resumed from different states; resume all from the end of "
                "the same epoch, or use exchange: float32"
            )
        return received[: self._size], sent
