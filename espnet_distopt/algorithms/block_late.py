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

Memory: 2P elements, and 2P more for each moment that is averaged.
"""

from collections.abc import Generator
from typing import Any

from torch import Tensor

from espnet_distopt.effects import AllReduceMean, Begin, Effect, Program, Wait
from espnet_distopt.pieces import pieces


class LateAverage:
    """An average that is under way, of what one learner had at the end of its block.

    Attributes:
        message: as the learner sent it.
        params: (P,) its snapshot.
        moments: moment name -> (P,) snapshot.
        updates: the optimizer's, up to the snapshot.
        averages: of message, params and moments, in this order, after `wait`; those are
            the caller's to overwrite.

    Args:
        averaged: moments are averaged, too.
    """

    def __init__(
        self,
        message: Tensor,
        params: Tensor,
        moments: dict[str, Tensor],
        updates: int,
        averaged: bool,
    ) -> None:
        self._averaged = averaged
        self.message = message
        self.params = params
        self.moments = moments
        self.updates = updates
        self.averages: list[Tensor] = []
        self._handles: list[Any] = []

    def begin(self) -> Program:
        """Begin to average."""
        sent = [self.message, self.params]
        sent += self.moments.values() if self._averaged else []
        for tensor in sent:
            self._handles.append((yield Begin(AllReduceMean(tensor.clone()))))

    def wait(self) -> Generator[Effect, Any, None]:
        """Wait for the averages; a run that goes on from a saved state begins anew."""
        if not self._handles and not self.averages:
            yield from self.begin()
        for handle in self._handles:
            self.averages.append((yield Wait(handle)))
        self._handles.clear()

    def replace(self, params: Tensor, start: Tensor, updates: int) -> None:
        """Put `start` (P,), which is overwritten, in place of the snapshot."""
        if updates == self.updates:
            params.copy_(start)  # the same bits everywhere
        else:
            for x, s, snapshot in pieces(params, start, self.params):
                x.add_(s.sub_(snapshot))

    def state_dict(self) -> dict[str, Any]:
        """Return what this learner has sent."""
        return {
            "message": self.message.clone(),
            "params": self.params.clone(),
            "moments": {name: tensor.clone() for name, tensor in self.moments.items()},
            "updates": self.updates,
            "averaged": self._averaged,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], like: Tensor) -> "LateAverage":
        """Return what `state_dict` is of, on the device of `like`."""
        return cls(
            state["message"].to(like.device),
            state["params"].to(like),
            {name: tensor.to(like) for name, tensor in state["moments"].items()},
            state["updates"],
            state["averaged"],
        )
