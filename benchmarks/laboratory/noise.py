"""The share of its noise that is each replica's own, of all replicas at once.

The equations are in `espnet_distopt.optimizers.noise_share`.
"""

import math

import torch
from torch import Tensor

from espnet_distopt.optimizers.noise_share import (
    EACH,
    EACH_OF_PAIRS,
    STEPS,
    TENSORS,
    WHOLE,
)
from laboratory.learners import Adam, Learners


class NoiseShares:
    """Compares the gradients of replicas, and tells Adam what it has measured.

    Where nothing is corrected, all of it does nothing.

    Args:
        learners: the replicas, R = T N.
        pairs: whether replicas exchange in pairs, and compare gradients of equal steps.
    """

    def __init__(self, learners: Learners, pairs: bool = False) -> None:
        self._learners, x = learners, learners.x
        optimizer = learners.optimizer
        self._adam = optimizer if isinstance(optimizer, Adam) else None
        if self._adam is not None and not self._adam.noise.numel():
            self._adam = None
        sizes = [math.prod(shape) for shape in learners.problem.shapes]
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        chosen = sorted(range(len(sizes)), key=lambda n: -sizes[n])[:TENSORS]
        columns = [len(chosen)] * len(sizes)
        places, of = [], []
        for number, n in enumerate(chosen):
            stop = starts[n] + sizes[n]
            stride = -(-sizes[n] // (EACH_OF_PAIRS if pairs else EACH))
            places.append(torch.arange(starts[n], stop, stride))
            of.append(torch.full_like(places[-1], number))
            columns[n] = number
        self._places, self._of = torch.cat(places), torch.cat(of)
        rows, size = len(x), len(self._places)
        self._taken = torch.zeros(3, rows, size, dtype=torch.float64)
        self._followed = torch.zeros(2, rows, size, dtype=torch.float64)
        self._measured = torch.zeros(rows, len(chosen) + 1, dtype=torch.float64)
        self._sampled = torch.zeros(rows, dtype=torch.long)
        self._compared = torch.zeros_like(self._sampled)
        shown = size if pairs and self._adam is not None else 0
        self._latest = torch.zeros(rows, STEPS, shown, dtype=torch.float64)
        self._sent, self._sent_at = self._latest.clone(), self._sampled.clone()
        if self._adam is not None:
            self._adam.shares = self._measured.clone()
            self._adam.ends = torch.tensor(sizes).cumsum(0)
            self._adam.columns = torch.tensor(columns)
            self._adam.places = self._places
            self._adam.sampled = self._taken[0].clone()

    @property
    def samples(self) -> Tensor:
        """The elements of gradients that replicas have sampled last, (R, K)."""
        return self._taken[0]

    def sample(self, rows: Tensor) -> None:
        """Let some replicas (n,) take elements of their last gradients."""
        if self._adam is None:
            return
        adam, places = self._adam, self._places
        count, b2 = adam.counts[rows].double(), adam.decays["exp_avg_sq"]
        known = (count > 1).double()
        factors = [
            known,
            torch.where(count > 1, 1 / (1 - b2 ** (count - 1)), 0.0),
            known,
        ]
        read = [adam.sampled[rows], adam.noise[rows[:, None], places]]
        read.append(torch.ones_like(read[0]))
        for moment, factor, taken in zip(read, factors, self._taken, strict=True):
            taken[rows] = moment.double() * factor[:, None]
        self._sampled[rows] = self._learners.made[rows]
        if self._latest.numel():
            rolled = self._latest[rows].roll(1, 1)
            rolled[:, 0] = self._taken[0, rows]
            self._latest[rows] = rolled

    def publish(self, rows: Tensor) -> None:
        """Let some replicas (n,) show the samples of their last steps."""
        self._sent[rows] = self._latest[rows]
        self._sent_at[rows] = self._sampled[rows]

    def deviations(self, a: Tensor, p: Tensor) -> Tensor:
        """Return the squares of what pairs show, less their means, (n, K).

        Args:
            a: one replica of each pair (n,).
            p: the other one.
        """
        ahead = self._sent_at[p] - self._sent_at[a]
        ahead = ahead.where(ahead.abs() < STEPS, 0)
        difference = self._sent[p, ahead.clamp(min=0)]
        difference -= self._sent[a, (-ahead).clamp(min=0)]
        return (difference / 2).square()

    def compare(self, rows: Tensor, deviations: Tensor, spread: Tensor | float) -> None:
        """Let some replicas follow the noise of their own.

        Args:
            rows: the replicas (n,).
            deviations: the squares of what each has sampled, less the mean of those who
                compare (n, K).
            spread: d for each of them (n,).
        """
        if self._adam is None:
            return
        _, noise, known = self._taken[:, rows]
        b2 = self._adam.decays["exp_avg_sq"]
        passed = (self._sampled[rows] - self._compared[rows]).double()
        self._compared[rows] = self._sampled[rows]
        d = torch.as_tensor(spread, dtype=torch.float64).expand(len(rows))
        followed = self._followed[:, rows] * (b2**passed)[:, None]
        followed[0] += deviations * known
        followed[1] += known * d[:, None]
        self._followed[:, rows] = followed
        both = torch.stack([followed[0] / followed[1], noise])
        both = both.where(followed[1] > 0, 0.0)
        sums = both.new_zeros(2, len(rows), self._measured.shape[1] - 1)
        sums.index_add_(2, self._of, both)
        own, whole = torch.cat([sums, sums.sum(2, keepdim=True)], 2)
        before = self._measured[rows]
        share = (own / whole / WHOLE).clamp(max=1.0)
        share = torch.where(whole > 0, share, before)
        self._measured[rows] = share

    def compare_on(self, weights: Tensor) -> None:
        """Let all replicas compare with their means by W (N, N), and use the shares."""
        learners = self._learners
        own = weights.diagonal()
        spread = (1 - own) ** 2 + weights.square().sum(1) - own**2
        of_trainings = learners.by_training(self.samples)
        deviations = (of_trainings - weights @ of_trainings).square().flatten(0, 1)
        everybody = torch.arange(len(learners.x))
        self.compare(everybody, deviations, spread.repeat(learners.trainings))
        self.use(everybody)

    def compare_together(self) -> None:
        """Let all replicas take the mean of their deviations, and use the shares."""
        learners = self._learners
        of_trainings = learners.by_training(self.samples)
        variance = of_trainings.var(1, correction=0, keepdim=True)
        deviations = variance.expand_as(of_trainings).flatten(0, 1)
        everybody = torch.arange(len(learners.x))
        self.compare(everybody, deviations, 1 - 1 / learners.size)
        self.use(everybody)

    def use(self, rows: Tensor) -> None:
        """Let Adam correct the steps of some replicas by what was measured last."""
        if self._adam is not None:
            self._adam.shares[rows] = self._measured[rows]
