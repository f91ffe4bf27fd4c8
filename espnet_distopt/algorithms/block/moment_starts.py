"""The moments at the start of a block, from which they are extrapolated at its end.

At the end of a block the mean of a moment becomes m_init, which is the start m_0 of the
next block. So all learners have the same starts, unless a user loads moments. The
equations are those of `moments`.

Nothing brings starts together again that differ: what one of them is off by is
multiplied by -kappa in each block, and kappa is above 1 where b is near 1. So kappa
must have the same bits on all learners. It is computed from decays that they have
agreed on, because one of them may be a step behind in a schedule that changes them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.block.block_start import BlockStart
from espnet_distopt.algorithms.block.extrapolation import (
    extrapolate,
    extrapolation_gain,
)
from espnet_distopt.algorithms.block.flat_moments import Moments
from espnet_distopt.algorithms.block.part import Part
from espnet_distopt.optimizers.consistent import SQUARES


class MomentStarts:
    """The moments of a part of the parameters at the start of a block.

    A moment that is not remembered starts from zeros. Memory: one tensor (P,) for each
    moment, once it is asked for.

    Args:
        part: the parameters whose moments they are.
        moments: their live moments.
        dtype: the precision in which the starts are kept.
    """

    def __init__(self, part: Part, moments: Moments, dtype: torch.dtype) -> None:
        self._params, self._tensors = part.params, len(part.slots)
        self._moments = moments
        self._dtype = dtype
        self._kept: dict[str, Tensor] = {}
        self._decays = moments.named(moments.numbers())

    def forget(self) -> None:
        """Let all moments start from zeros."""
        self._kept = {}

    def remember(self, flats: dict[str, Tensor]) -> None:
        """Copy the live moments, name -> (P,), as they are when a block begins."""
        self._kept = {n: f.to(self._dtype, copy=True) for n, f in flats.items()}

    def _of(self, name: str) -> Tensor:
        """Return a moment at the start of the block (P,)."""
        if name not in self._kept:  # The optimizer's first block starts from zeros.
            self._kept[name] = torch.zeros_like(self._params, dtype=self._dtype)
        return self._kept[name]

    def agree(self, decays: Sequence[float]) -> None:
        """Take the decays that the learners have agreed on at the end of a block.

        Args:
            decays: the mean of their `Moments.numbers`; if it is empty, those that were
                agreed on before stay.
        """
        if decays:
            self._decays = self._moments.named(decays)

    def decayed(self, name: str, period: int) -> BlockStart:
        """Return what a start has become by the end of a block without gradients.

        The decays are those that were agreed on last, so that it has the same bits on
        all learners. Before the first block has ended, starts are zeros.

        Args:
            name: the moment's name.
            period: number of updates in the block.
        """
        decays, start = self._decays[name], self._of(name)
        runs = self._moments.runs([0.0] * self._tensors)
        factors = [(part, decays[group] ** period) for part, group, _ in runs]
        return BlockStart(start, factors=factors, dtype=self._params.dtype)

    def move(
        self,
        name: str,
        mean: Tensor,
        part: slice,
        group: int,
        counts: tuple[float, float],
        block: int,
    ) -> Tensor:
        """Start the next block at m_init; return the piece of it.

        Args:
            name: the moment's name.
            mean: a piece of the averaged moment.
            part: its place.
            group: the number of its parameters' group.
            counts: their number of updates in the block, and k.
            block: the number of the block.
        """
        (tau, k), decay = counts, self._decays[name][group]
        gain = extrapolation_gain(decay, tau, k)
        # A second moment is a mean of squares, and must not become negative.
        bounded = name == SQUARES and gain != 0
        floor = decay ** (tau + k) if bounded else None
        start = self._of(name)[part]
        extrapolate(mean, start, gain, floor, block)
        return start

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the starts that are kept, name -> (P,), and the decays."""
        kept = {name: tensor.clone() for name, tensor in self._kept.items()}
        return {"init": kept, "decays": dict(self._decays)}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore what `state_dict` has returned; return whether every bit is kept."""
        where, self._kept = self._params.device, {}
        exact = True
        for name, start in state["init"].items():
            self._kept[name] = start.to(where, self._dtype, copy=True)
            exact &= torch.equal(self._kept[name].to(start), start)
        present = self._moments.named(self._moments.numbers())
        self._decays = state.get("decays", present)  # Older versions have saved none.
        return exact
