"""Continuous momentum (A2CiD2; Nabli, Belilovsky and Oyallon, NeurIPS 2023).

On a ring of N learners a difference needs some N^2 exchanges of each learner to even
out. A2CiD2 ("Accelerating asynchronous communication in decentralized deep learning")
gives each learner a second copy x~ of its parameters, which its own x is drawn to, so
that what exchanges have changed goes on for a while. Between two events

    dx = eta (x~ - x) dt,   dx~ = eta (x - x~) dt

A gradient changes x and x~ by the same update. An exchange with learner j adds
(x_j - x) / 2 to x, and alpha~ (x_j - x) to x~.

    paper                       here
    x~ - x                      `velocity`, the only further tensor
    Lambda                      the Laplacian of the graph, whose edges have the number
                                of exchanges of a step, see `strength`
    chi_1                       1 / lambda_2, the slowest of its modes
    chi_2                       half the largest effective resistance of an edge
    eta, alpha~                 1 / (2 sqrt(chi_1 chi_2)), sqrt(chi_1 / chi_2) / 2
    exp(-2 eta t)               `keep`, after a unit of time

A gradient leaves `velocity` alone, so that no update of an optimizer costs a pass.
Between two events every learner conserves its x + velocity / 2, which is where x would
come to rest, and the two ends of an exchange move that by exact negatives. So its mean
over the learners changes by their updates and by nothing else, and is the consensus
model. The mean of x alone may differ from it for a while.

Two things differ from the paper, because its exchanges take no time:

- Its clock is that of all learners. Here a unit of time passes with each correction
  that a learner applies. Where exchanges are rare, because links are slow, a clock of
  steps would let x move by more than a whole difference: learners come apart.
- A correction is applied at the end of a step, when the peer may be elsewhere. So half
  of the paper's alpha~ - 1/2 brings learners closer than all of it (`EXTRA`).

Memory: P elements. Cost: two passes over them for each correction, and no bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espnet_distopt.algorithms.gossip.colours import Colours, GossipTopology
from espnet_distopt.core.cache_blocks import cache_blocks
from espnet_distopt.core.gossip_state import GossipState

EXTRA = 0.5
"""The share of the paper's alpha~ - 1/2 that `velocity` gets of a difference. On a ring
of 64 learners the mean square distance is 8.64 without momentum, 7.22 with all of the
paper's alpha~, and 5.44 with this share (benchmarks/topologies.py)."""


class ContinuousMomentum:
    """The velocity of one learner's parameters.

    Attributes:
        velocity: tensor (P,), x~ - x.
        keep: the share of `velocity` that is left after a unit of time, 0 < keep < 1.
        gain: the share of a difference that is added to `velocity`, >= 0.
        due: whether a unit of time has begun that has not passed yet.

    Args:
        params: the parameters (P,).
        strength: the `keep` and `gain` of the graph, from `strength`.
    """

    def __init__(self, params: Tensor, strength: tuple[float, float]) -> None:
        self.velocity = torch.zeros_like(params, requires_grad=False)
        self.keep, self.gain = strength
        self.due = False

    def advance(self, params: Tensor) -> None:
        """Let a unit of time pass for `params` (P,) if a correction came before."""
        if not self.due:
            return
        self.due = False
        moved = (1 - self.keep) / 2
        for x, v in cache_blocks(params, self.velocity):
            x.add_(v, alpha=moved)
            v.mul_(self.keep)

    def correct(self, difference: Tensor) -> None:
        """Follow a correction of the parameters by half of `difference` (P,)."""
        self.velocity.add_(difference, alpha=self.gain)
        self.due = True

    def reset(self) -> None:
        """Forget the velocity: the parameters were replaced."""
        self.velocity.zero_()
        self.due = False

    def state_dict(self) -> dict[str, Any]:
        """Return the velocity, and whether a unit of time is due."""
        return {"velocity": self.velocity.clone(), "due": self.due}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore what `state_dict` has returned; None begins without velocity."""
        self.reset()
        if state is not None:
            self.velocity.copy_(state["velocity"])
            self.due = state["due"]

    def of(self, state: GossipState) -> GossipState:
        """Return `state` with what the learner conserves beside its parameters."""
        return replace(state, beside=self.velocity / 2, beside_weight=self.gain / 2)


@cache
def strength(
    topology: GossipTopology, everyone: tuple[int, ...]
) -> tuple[float, float]:
    """Return `keep` and `gain` for learners that each take part in one exchange a step.

    Both are those of all learners, whoever has died: the two ends of an exchange must
    have the same, and learners hear of a death at different times.

    Args:
        topology: the graph.
        everyone: the ranks that may ever gossip, two at least.

    Example:
        >>> keep, gain = strength("ring", tuple(range(64)))
        >>> f"{keep:.4f} {gain:.4f}"
        '0.9324 3.3812'
        >>> gain = strength("random", tuple(range(64)))[1]
        >>> f"{gain:.4f}"  # Random pairs leave nothing to speed up.
        '0.0020'
    """
    colours = {rank: Colours(topology, rank, everyone, everyone) for rank in everyone}
    chosen = {rank: c.neighbours for rank, c in colours.items() if c.active}
    chi_1, chi_2 = _resistances(chosen)
    eta = 1 / (2 * math.sqrt(chi_1 * chi_2))
    alpha = math.sqrt(chi_1 / chi_2) / 2
    return math.exp(-2 * eta), EXTRA * (alpha - 0.5)


def _resistances(chosen: Mapping[int, tuple[int, ...]]) -> tuple[float, float]:
    """Return chi_1 and chi_2 of a graph.

    Args:
        chosen: active learner -> the passive ones, one of which it invites in a step.
    """
    ranks = sorted({*chosen, *(peer for peers in chosen.values() for peer in peers)})
    place = {rank: index for index, rank in enumerate(ranks)}
    laplacian = np.zeros((len(ranks), len(ranks)))
    edges = []
    for active, peers in chosen.items():
        for peer in peers:
            a, b, rate = place[active], place[peer], 1 / len(peers)
            edges.append((a, b))
            laplacian[[a, b], [a, b]] += rate
            laplacian[[a, b], [b, a]] -= rate
    slowest = np.linalg.eigvalsh(laplacian)[1]
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    largest = max(inverse[a, a] + inverse[b, b] - 2 * inverse[a, b] for a, b in edges)
    return float(1 / slowest), float(largest / 2)
