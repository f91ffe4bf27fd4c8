"""Delayed averaging: learners train on while the average of a block is computed.

At the end of a block every learner takes a snapshot of its parameters and begins the
all-reduce of these snapshots. Beside it, the learner takes the first `delay` steps of
the next block. Then it waits for the average, from which `bmuf` computes the start
point theta_init, and moves by the difference between theta_init and its snapshot:

    theta_i += theta_init - snapshot_i                   (theta_init: see `bmuf`)
    m_i     += b^j (m_init - m_i at the snapshot)        (a moment with decay b)

where j is the number of updates since the snapshot. A moment is a linear recursion,
m <- b m + (1 - b) g. So a change that is made j updates late, times b^j, has the same
effect as one made at once, for the same gradients. The price of the delay is that these
j gradients were computed at parameters that had not moved to theta_init yet, as in
`d1d_model`.

The end of one block of two learners, Anna and Ben, with one parameter, `period` 4,
`delay` 2 and plain averaging:

    1. Both have made 4 steps. Anna is at 8, Ben at 6. They keep these snapshots and
       begin the all-reduce of copies of them.
    2. Both make 2 steps of the next block. Anna moves from 8 to 7.5, Ben from 6 to 5.
    3. Both wait for the average, which is 7. Anna moves to 7.5 + (7 - 8) = 6.5, Ben to
       5 + (7 - 6) = 6: each is where its two updates lead from 7.
    4. Both make the other 2 steps of the block, and its end begins anew with 1.

What could go wrong, and why it does not:

    If step 3 wrote the average 7 to the parameters, the updates of step 2 would be
    lost. Adding the difference keeps them whole.

    If Anna began the average of the next block before she had taken this one's, she
    would overwrite the copies that the all-reduce still sends. `delay` is less than
    `period`, so she takes this one's first; and because all learners count attempted
    steps, Ben begins and takes the averages in the same order.

    If Anna's epoch ends in step 2, `Bmuf.finish` takes the average first. It then goes
    on beginning and taking averages, with no steps in between, until Ben's epoch has
    ended too: Ben never waits in a collective that Anna does not enter.

    If the run is saved in step 2, the state holds the snapshots. A run that goes on
    from it begins the same all-reduce once more.

Wang, Liang and Joshi 2020 (Overlap Local-SGD, arXiv 2002.09539: local models are pulled
towards a late average, the anchor) and Zhou et al. 2020 (DaSGD, arXiv 2006.00441) hide
the average in the same place. The rule for the parameters, by which no local step
counts less, is also that of Maziane et al. 2026 (LOSCAR-SGD, arXiv 2605.20866).

Memory: 2P elements, and 2P more for each moment that is averaged. They are kept from
block to block, because allocating so much memory anew takes longer than copying it.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.effects import AllReduceMean, Begin, Effect, Program, Wait

_PARAMS = "parameters"


class LateAverage:
    """The averages of one learner's blocks, of which at most one is under way.

    Attributes:
        under_way: whether an average has begun and has not been taken yet.
        message: the numbers that this learner has sent beside its parameters.
        params: the learner's parameters (P,) at the snapshot.
        moments: the optimizer's moments at the snapshot, moment name -> (P,).
        updates: number of updates that the optimizer had made at the snapshot.
        averages: the averages of message, params and moments, in this order. They are
            there after `wait`, and the caller may overwrite them until the next
            `begin`.

    Args:
        averaged: whether the moments are averaged as well.
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
        """Take the snapshots, which are copies, and begin to average them.

        Args:
            message: the numbers that learners average beside their parameters, (S,).
            params: the parameters (P,).
            moments: the optimizer's moments, moment name -> (P,).
            updates: number of updates that the optimizer has made.
        """
        self.message, self.updates = message, updates
        self.params = self._snapshot(_PARAMS, params)
        self.moments = {name: self._snapshot(name, m) for name, m in moments.items()}
        self.under_way = True
        yield from self._begin()

    def _snapshot(self, name: str, tensor: Tensor) -> Tensor:
        """Copy `tensor` to the snapshot `name`, and to the tensor that is averaged."""
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
        sent = self.message.clone()
        self._handles.append((yield Begin(AllReduceMean(sent, kept=self.message))))
        for name, tensor in self._sent.items():
            mean = AllReduceMean(tensor, kept=self._snapshots[name])
            self._handles.append((yield Begin(mean)))

    def wait(self) -> Generator[Effect, Any, None]:
        """Wait for the averages; begin them anew in a run that was resumed."""
        if not self._handles and not self.averages:
            yield from self._begin()
        for handle in self._handles:
            self.averages.append((yield Wait(handle)))
        self._handles.clear()

    def taken(self) -> None:
        """Note that the averages have been used: none is under way any more."""
        self.under_way = False
        self.averages = []

    def replace(self, params: Tensor, start: Tensor) -> None:
        """Move `params` (P,) by `start` (P,) minus the snapshot, in place.

        If there has been no update since the snapshot, `params` become the very bits
        of `start`.
        """
        for x, s, snapshot in cache_blocks(params, start, self.params):
            x.sub_(snapshot).add_(s)

    def state_dict(self) -> dict[str, Any] | None:
        """Return what this learner has sent; None if no average is under way."""
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
        """Restore what `state_dict` has returned, on the device of `like`."""
        self.taken()
        if state is None:
            return
        self._averaged = state["averaged"]
        self.under_way, self.updates = True, state["updates"]
        self.message = state["message"].to(like.device)
        self.params = self._snapshot(_PARAMS, state["params"].to(like))
        moments = state["moments"].items()
        self.moments = {name: self._snapshot(name, m.to(like)) for name, m in moments}
