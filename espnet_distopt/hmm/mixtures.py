"""Mixtures of diagonal Gaussians, one for each pdf, trained by maximum likelihood.

They are the acoustic model of the first alignments, as in Kaldi's monophone system.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_VARIANCE = 1e-2
_LEAST_FRAMES = 10.0
"""A component with fewer frames than this is switched off, as its variance says
nothing."""
_SPLIT = 0.2
"""How far the halves of a component move apart, in standard deviations."""
_BLOCK = 4096
"""The number of frames whose statistics are computed together, which bounds memory."""


@dataclass
class Mixtures:
    """P mixtures of M Gaussians each over D dimensions.

    Attributes:
        log_weights: Shape (P, M); minus infinity for a component that is switched off.
        means: Shape (P, M, D).
        variances: Shape (P, M, D).
    """

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    @classmethod
    def flat(cls, pdfs: int, dimensions: int) -> "Mixtures":
        """Return one standard Gaussian for each pdf."""
        return cls(
            torch.zeros(pdfs, 1),
            torch.zeros(pdfs, 1, dimensions),
            torch.ones(pdfs, 1, dimensions),
        )

    def components(self, features: Tensor) -> Tensor:
        """Return the log likelihood of each component with its weight.

        Args:
            features: Shape (T, D).

        Returns:
            Shape (T, P, M). It costs 4 T P M D floating-point operations.
        """
        pdfs, size, dimensions = self.means.shape
        precisions = 1 / self.variances
        constants = self.log_weights - 0.5 * (
            dimensions * math.log(2 * math.pi)
            + self.variances.log().sum(2)
            + (self.means**2 * precisions).sum(2)
        )
        linear = features @ (self.means * precisions).reshape(-1, dimensions).T
        square = features**2 @ precisions.reshape(-1, dimensions).T
        return (linear - 0.5 * square).reshape(-1, pdfs, size) + constants

    def scores(self, features: Tensor) -> Tensor:
        """Return the log likelihood of each pdf, shape (T, P), for features (T, D)."""
        return self.components(features).logsumexp(2)

    def split(self) -> None:
        """Double the number of components: each moves to both sides of its mean."""
        moved = _SPLIT * self.variances.sqrt()
        self.means = torch.cat([self.means - moved, self.means + moved], 1)
        self.variances = torch.cat([self.variances, self.variances], 1)
        halves = self.log_weights - math.log(2)
        self.log_weights = torch.cat([halves, halves], 1)


class Statistics:
    """The sums over frames from which the next mixtures are estimated (EM).

    Args:
        mixtures: The mixtures that weigh the components of a frame's pdf.
    """

    def __init__(self, mixtures: Mixtures) -> None:
        self._mixtures = mixtures
        pdfs, size, dimensions = mixtures.means.shape
        self._frames = torch.zeros(pdfs, size, dtype=torch.float64)
        self._first = torch.zeros(pdfs, size * dimensions, dtype=torch.float64)
        self._second = torch.zeros_like(self._first)
        self.log_likelihood = 0.0
        """The sum of the log likelihoods of the frames."""

    def add(self, features: Tensor, pdfs: Tensor) -> None:
        """Add frames.

        Args:
            features: Shape (T, D).
            pdfs: The pdf of each frame, shape (T,), int64.
        """
        for first in range(0, len(pdfs), _BLOCK):
            x, pdf = features[first : first + _BLOCK], pdfs[first : first + _BLOCK]
            every = self._mixtures.components(x)
            own = every[torch.arange(len(x)), pdf]
            total = own.logsumexp(1, keepdim=True)
            self.log_likelihood += float(total.sum())
            share = (own - total).exp()
            weighted = share[:, :, None] * x[:, None]
            self._frames.index_add_(0, pdf, share.double())
            self._first.index_add_(0, pdf, weighted.flatten(1).double())
            square = weighted * x[:, None]
            self._second.index_add_(0, pdf, square.flatten(1).double())

    def estimate(self) -> Mixtures:
        """Return the mixtures of the greatest likelihood.

        A component with too few frames is switched off, unless its pdf would have no
        other; a pdf without frames stays as it is.
        """
        old = self._mixtures
        frames = self._frames.float()
        counts = frames.clamp(min=1e-3)[:, :, None]
        means = self._first.float().view_as(old.means) / counts
        second = self._second.float().view_as(old.means) / counts
        variances = (second - means**2).clamp(min=_LEAST_VARIANCE)
        enough = frames >= _LEAST_FRAMES
        best = frames == frames.amax(1, keepdim=True)
        kept = (enough | best)[:, :, None] & (frames > 1)[:, :, None]
        share = torch.where(enough | best, frames, torch.zeros(()))
        weights = share / share.sum(1, keepdim=True).clamp(min=1e-3)
        seen = frames.sum(1, keepdim=True) > 1
        return Mixtures(
            torch.where(seen, weights.log(), old.log_weights),
            torch.where(kept, means, old.means),
            torch.where(kept, variances, old.variances),
        )
