"""The end of a block that learners do not wait for (delayed averaging).

At a block's end the average of a snapshot begins; the next block's first `delay` steps
run beside it; then its result is put in place of the snapshot, which they have moved on
from:

    theta_i += theta_init - snapshot_i                   (theta_init: see `bmuf`)
    m_i     += b^j (m_init - m_i at the snapshot)        (a moment with decay b)

A moment is a linear recursion, m <- b m + (1 - b) g, so a change made j updates late is
what it would have been at once, for the same gradients. What those steps lose is that
their gradients were computed beside theta_init, as in `d1d_model`.

Wang, Liang and Joshi 2020 (Overlap Local-SGD, arXiv 2002.09539: local models are pulled
towards a late average, the anchor) and Zhou et al. 2020 (DaSGD, arXiv 2006.00441) hide
the average in the same place. The rule for the parameters, by which no local step
counts less, is also that of Maziane et al. 2026 (LOSCAR-SGD, arXiv 2605.20866).

Memory: 2P elements, and 2P more for each moment that is averaged, kept from block to
block: to ask the system for so much anew takes longer than to copy it.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import AllReduceMean, Begin, Effect, Program, Wait

_PARAMS = "parameters"


class LateAverage:
    """Averages what one learner has at the ends of its blocks, one after the other.

    Attributes:
        under_way: an average has begun that has not been taken.
        message: as the learner sent it.
        params: (P,) its snapshot.
        moments: moment name -> (P,) snapshot.
        updates: the optimizer's, up to the snapshot.
        averages: of message, params and moments, in this order, after `wait`; those are
            the caller's to overwrite, until the next `begin`.

    Args:
        averaged: moments are averaged, too.
    """

    message: Tensor
    params: Tensor
    moments: dict[str, Tensor]
    updates: int

    def __init__(self, averaged: bool) -> None:
        self.under_way = False
        self.averages: list[Tensor] = []
        self._averaged = averaged
        self._snapshots: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}
        self._handles: list[Any] = []

    def begin(
        self, message: Tensor, params: Tensor, moments: dict[str, Tensor], updates: int
    ) -> Program:
        """Begin to average; what is given is copied."""
        self.message, self.updates = message, updates
        self.params = self._snapshot(_PARAMS, params)
        self.moments = {name: self._snapshot(name, m) for name, m in moments.items()}
        self.under_way = True
        yield from self._begin()

    def _snapshot(self, name: str, tensor: Tensor) -> Tensor:
        """Copy `tensor` to where it stays, and to where it will be averaged."""
        if name not in self._snapshots:
            self._snapshots[name] = torch.empty_like(tensor)
            if self._averaged or name == _PARAMS:
                self._sent[name] = torch.empty_like(tensor)
        snapshot = self._snapshots[name]
        if name not in self._sent:
            return snapshot.copy_(tensor)
        for own, sent, new in cache_blocks(snapshot, self._sent[name], tensor):
            own.copy_(new)
            sent.copy_(own)
        return snapshot

    def _begin(self) -> Program:
        for tensor in [self.message.clone(), *self._sent.values()]:
            self._handles.append((yield Begin(AllReduceMean(tensor))))

    def wait(self) -> Generator[Effect, Any, None]:
        """Wait for the averages; a run that goes on from a saved state begins anew."""
        if not self._handles and not self.averages:
            yield from self._begin()
        for handle in self._handles:
            self.averages.append((yield Wait(handle)))
        self._handles.clear()

    def taken(self) -> None:
        """End: the averages have been used."""
        self.under_way = False
        self.averages = []

    def replace(self, params: Tensor, start: Tensor) -> None:
        """Put `start` (P,) in place of the snapshot.

        Where there have been no updates since, `params` become the bits of `start`.
        """
        for x, s, snapshot in cache_blocks(params, start, self.params):
            x.sub_(snapshot).add_(s)

    def state_dict(self) -> dict[str, Any] | None:
        """Return what this learner has sent, if that is under way."""
        if not self.under_way:
            return None
        return {
            "message": self.message.clone(),
            "params": self.params.clone(),
            "moments": {name: tensor.clone() for name, tensor in self.moments.items()},
            "updates": self.updates,
            "averaged": self._averaged,
        }

    def load_state_dict(self, state: dict[str, Any] | None, like: Tensor) -> None:
        """Write back what `state_dict` returned, to the device of `like`."""
        self.taken()
        if state is None:
            return
        self._averaged = state["averaged"]
        self.under_way, self.updates = True, state["updates"]
        self.message = state["message"].to(like.device)
        self.params = self._snapshot(_PARAMS, state["params"].to(like))
        moments = state["moments"].items()
        self.moments = {name: self._snapshot(name, m.to(like)) for name, m in moments}
