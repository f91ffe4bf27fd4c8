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

With `exchange: bfloat16` snapshots are changes since the block's start, see
`compression`, and what rounding leaves out stays in the learner's own parameters and
moments.

Memory: 2P elements, and 2P more for each moment that is averaged; half of that with
bfloat16, and 3P more while a block ends. They are kept from block to block, because
allocating so much memory anew takes longer than copying it.
"""

from collections.abc import Collection, Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.compression import Start
from espnet_distopt.core.effects import AllReduceMean, Begin, Effect, Program, Wait
from espnet_distopt.errors import InputError

PARAMS = "parameters"
"""The name of the parameters among what is averaged."""

MESSAGE = "message"
"""The name of the numbers that learners send beside it."""


class LateAverage:
    """The averages of one learner's blocks, of which at most one is under way.

    Attributes:
        under_way: whether an average has begun and has not been taken yet.
        message: the numbers that this learner has sent beside its parameters.
        updates: number of updates that the optimizer had made at the snapshot.

    Args:
        room: number of elements of the largest tensor that is averaged.
    """

    message: Tensor
    updates: int

    def __init__(self, room: int) -> None:
        self.under_way = False
        self._room = room
        self._own: dict[str, Tensor] = {}
        self._shared: dict[str, Tensor] = {}
        self._starts: Mapping[str, Start] = {}
        self._snapshots: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}
        self._handles: list[Any] = []
        self._complete = False

    def begin(
        self,
        message: Tensor,
        tensors: dict[str, Tensor],
        averaged: Collection[str],
        starts: Mapping[str, Start],
        updates: int,
    ) -> Program:
        """Take the snapshots, which are copies, and begin to average them.

        Args:
            message: the numbers that learners average beside their parameters, (S,).
            tensors: the parameters and the optimizer's moments, name -> (P,).
            averaged: the names of those that are averaged.
            starts: the starts since which changes are sent, for these names.
            updates: number of updates that the optimizer has made.
        """
        self.message, self.updates = message, updates
        self._starts = starts
        for name, tensor in tensors.items():
            self._take(name, tensor, name in averaged)
        self.under_way = True
        yield from self._begin()

    def _take(self, name: str, tensor: Tensor, averaged: bool) -> None:
        """Copy `tensor` to the snapshot `name`, and to the tensor that is averaged."""
        start = self._starts.get(name)
        dtype = tensor.dtype if start is None else torch.bfloat16
        snapshot = self._snapshots[name] = self._memory(self._own, name, tensor, dtype)
        snapshot.copy_(tensor if start is None else tensor - start())
        if averaged:
            sent = self._memory(self._shared, name, tensor, dtype)
            self._sent[name] = sent.copy_(snapshot)

    def _memory(
        self, kept: dict[str, Tensor], name: str, like: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return memory for a tensor of the size of `like`, from block to block."""
        memory = kept.get(name)
        if memory is None or memory.dtype != dtype:
            memory = kept[name] = like.new_empty(self._room, dtype=dtype)
        return memory[: len(like)]

    def _begin(self) -> Program:
        numbers = self.message.clone()
        sent = {MESSAGE: numbers, **self._sent}
        kept = {MESSAGE: self.message, **self._snapshots}
        for name, tensor in sent.items():
            mean = AllReduceMean(tensor, kept=kept[name])
            self._handles.append((yield Begin(mean)))

    def wait(self) -> Generator[Effect, Any, Tensor]:
        """Wait for the averages; begin them anew in a run that was resumed.

        Returns the average of the message.
        """
        if not self._handles and not self._complete:
            yield from self._begin()
        for handle in self._handles:
            result: Tensor = yield Wait(handle)
            if not self._complete:
                self._numbers, self._complete = result, True
        self._handles.clear()
        return self._numbers

    def has(self, name: str) -> bool:
        """Return whether a tensor of this name was sent."""
        return name in self._snapshots

    def pair(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the snapshot and the average, (P,) each.

        The caller may overwrite the average. It is there after `wait`; if `name` is not
        averaged, it is a tensor with any values.
        """
        own = self._snapshots[name]
        start = self._starts.get(name)
        if name not in self._sent:
            return own, torch.empty_like(own)
        if start is None:
            return own, self._sent[name]
        base = start()
        return own.to(base.dtype).add_(base), self._sent[name].to(base.dtype).add_(base)

    def replace(
        self, params: Tensor, snapshot: Tensor, start: Tensor, updates: int
    ) -> None:
        """Move `params` (P,) by `start` minus the snapshot, in place.

        If there has been no update since the snapshot, `params` become the very bits
        of `start`.

        Args:
            params: the live parameters.
            snapshot: the snapshot of them, from `pair`.
            start: the start point that replaces it.
            updates: number of updates that the optimizer has made.
        """
        if self._starts and updates == self.updates:
            params.copy_(start)
            return
        params.sub_(snapshot).add_(start)

    def taken(self) -> None:
        """Note that the averages have been used: none is under way any more."""
        self.under_way = self._complete = False

    def state_dict(self) -> dict[str, Any] | None:
        """Return what this learner has sent; None if no average is under way."""
        if not self.under_way:
            return None
        snapshots = {name: tensor.clone() for name, tensor in self._snapshots.items()}
        return {
            "message": self.message.clone(),
            "snapshots": snapshots,
            "averaged": list(self._sent),
            "rounded": list(self._starts),
            "updates": self.updates,
        }

    def load_state_dict(
        self,
        state: dict[str, Any] | None,
        like: Tensor,
        starts: Mapping[str, Start],
    ) -> None:
        """Restore what `state_dict` has returned, on the device of `like`.

        Args:
            state: the state.
            like: the parameters (P,).
            starts: the starts since which changes are sent, as in `begin`.

        Raises:
            InputError: it was saved with another `exchange`.
        """
        self.taken()
        self._handles.clear()
        if state is None:
            return
        if set(state["rounded"]) != starts.keys():
            raise InputError(
                "the state was saved during a delayed average with another `exchange`; "
                "resume with the same, or from the end of an epoch"
            )
        self.under_way, self.updates = True, state["updates"]
        self.message = state["message"].to(like.device)
        self._starts = {}
        for name, tensor in state["snapshots"].items():
            self._take(name, tensor.to(like.device), name in state["averaged"])
        self._starts = starts
