"""The share of its noise that is each replica's own, of all replicas at once.

The equations are in `espnet_distopt.optimizers.noise_share`.
"""

import math

import torch
from torch import Tensor

from espnet_distopt.optimizers.noise_share import EACH, TENSORS
from laboratory.learners import Adam, Learners, noise_share


class NoiseShares:
    """Compares the first moments of replicas, and tells Adam what it has measured.

    Where nothing is corrected, all of it does nothing.

    Args:
        learners: the replicas, R = T N.
    """

    def __init__(self, learners: Learners) -> None:
        self._learners, x = learners, learners.x
        optimizer = learners.optimizer
        self._adam = optimizer if isinstance(optimizer, Adam) else None
        if self._adam is not None and not self._adam.noise.numel():
            self._adam = None
        sizes = [math.prod(shape) for shape in learners.problem.shapes]
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        chosen = sorted(range(len(sizes)), key=lambda n: -sizes[n])[:TENSORS]
        whole = torch.full((x.shape[1],), len(chosen))
        places, of = [], []
        for number, n in enumerate(chosen):
            stop = starts[n] + sizes[n]
            places.append(torch.arange(starts[n], stop, -(-sizes[n] // EACH)))
            of.append(torch.full_like(places[-1], number))
            whole[starts[n] : stop] = number
        self._places, self._of = torch.cat(places), torch.cat(of)
        rows, size = len(x), len(self._places)
        self._taken = torch.zeros(4, rows, size, dtype=torch.float64)
        self._followed = torch.zeros(2, rows, size, dtype=torch.float64)
        self._measured = torch.zeros(rows, len(chosen) + 1, dtype=torch.float64)
        self._sampled = torch.zeros(rows, dtype=torch.long)
        self._compared = torch.zeros_like(self._sampled)
        if self._adam is not None:
            self._adam.shares, self._adam.share_of = self._measured.clone(), whole

    @property
    def samples(self) -> Tensor:
        """The first moments that replicas have sampled last, (R, K)."""
        return self._taken[0]

    def sample(self, rows: Tensor) -> None:
        """Let some replicas (n,) take their first moments."""
        if self._adam is None:
            return
        adam, places = self._adam, self._places
        b1, b2 = adam.decays.values()
        count = adam.counts[rows].double()
        first, second = adam.moments.values()
        unbias = torch.where(count > 0, 1 / (1 - b1**count), 0.0)
        known = count > 1
        when, share = adam.averaged[:, rows]
        q = noise_share(count, b1, when, torch.zeros_like(share)) * unbias**2
        factors = [
            unbias,
            torch.where(known, 1 / (1 - b2**count), 0.0),
            torch.where(known, 1 / (1 - b2 ** (count - 1)), 0.0),
            torch.where(known, q, 0.0),
        ]
        ones = torch.ones(len(rows), len(places), dtype=torch.float64)
        read = [each[rows[:, None], places] for each in (first, second, adam.noise)]
        for moment, factor, taken in zip(
            [*read, ones], factors, self._taken, strict=True
        ):
            taken[rows] = moment.double() * factor[:, None]
        self._sampled[rows] = self._learners.made[rows]

    def compare(self, rows: Tensor, mean: Tensor, spread: Tensor | float) -> None:
        """Let some replicas follow the noise of their own.

        Args:
            rows: the replicas (n,).
            mean: the mean of the samples that each of them compares with, (n, K).
            spread: d for each of them (n,).
        """
        if self._adam is None:
            return
        moments, squares, noise, q = self._taken[:, rows]
        b2 = self._adam.decays["exp_avg_sq"]
        passed = (self._sampled[rows] - self._compared[rows]).double()
        self._compared[rows] = self._sampled[rows]
        d = torch.as_tensor(spread, dtype=torch.float64).expand(len(rows))
        followed = self._followed[:, rows] * (b2**passed)[:, None]
        followed[0] += (moments - mean).square() * (q > 0)
        followed[1] += q * d[:, None]
        self._followed[:, rows] = followed
        known = (followed[1] > 0) & (squares > 0)
        both = torch.stack([followed[0] / followed[1] / squares, noise / squares])
        both = both.where(known, 0.0)
        sums = both.new_zeros(2, len(rows), self._measured.shape[1] - 1)
        sums.index_add_(2, self._of, both)
        own, whole = torch.cat([sums, sums.sum(2, keepdim=True)], 2)
        before = self._measured[rows]
        share = torch.where(whole > 0, (own / whole).clamp(max=1.0), before)
        self._measured[rows] = share

    def compare_all(self, weights: Tensor) -> None:
        """Let all replicas compare by W (N, N), and step by what they measure."""
        learners, all_rows = self._learners, torch.arange(len(self._learners.x))
        own = weights.diagonal()
        spread = (1 - own) ** 2 + weights.square().sum(1) - own**2
        mean = weights @ learners.by_training(self.samples)
        self.compare(all_rows, mean.flatten(0, 1), spread.repeat(learners.trainings))
        self.use(all_rows)

    def use(self, rows: Tensor) -> None:
        """Let Adam correct the steps of some replicas by what was measured last."""
        if self._adam is not None:
            self._adam.shares[rows] = self._measured[rows]
