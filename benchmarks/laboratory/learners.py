"""The module trains R replicas of a model at once: each has a row of every tensor.

Several trainings stand side by side, each with N replicas, so that R = T N. Row t N + i
is replica i of training t. Trainings differ in their seeds and learning rates only.
Nothing here knows of communication: what replicas tell each other is in `methods`.

An optimizer is written as its published equation on rows, with one learning rate and
one number of updates a row. The passes over the parameters are in `kernels`, and go
through a few rows at a time, whose gradients stay in the processor's cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from laboratory import kernels
from laboratory.kernels import arrays

Samples = tuple[Tensor, ...]

CHUNK = 1 << 19
"""The elements of a tensor that are worked on at a time."""


class Problem(Protocol):
    """What replicas are trained on."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of the parameter tensors, in the order of the flat model."""
        ...

    def start(self, seed: int) -> Tensor:
        """Return the model (P,) at which a training begins."""
        ...

    def samples(self, seed: int, first: int, count: int) -> Samples:
        """Return samples of a training, from number `first` on."""
        ...

    def gradients(
        self, rows: Tensor, x: Tensor, samples: Samples, out: Tensor
    ) -> Tensor:
        """Return the losses (n,) of models, and write their gradients to `out`.

        Args:
            rows: which of the models (n,).
            x: the models (R, P).
            samples: those of each of them, (n, b, ...).
            out: a tensor (n, P).
        """
        ...

    def held_out_loss(self, x: Tensor) -> Tensor:
        """Return the loss of n models (n, P) over the samples held out, (n,)."""
        ...


class Optimizer(Protocol):
    """An optimizer of all replicas.

    Attributes:
        moments: name -> its moving averages (R, P).
        decays: name -> their decay.
        counts: the number of updates of each replica (R,), by which Adam corrects the
            bias of its moments. It is float32 as in `torch.optim`, and may have a
            fraction.
    """

    moments: dict[str, Tensor]
    decays: dict[str, float]
    counts: Tensor

    def update(self, rows: Tensor, x: Tensor, gradient: Tensor) -> None:
        """Make an update of some replicas, with which it overwrites their gradients.

        Args:
            rows: the replicas (n,).
            x: all replicas (R, P).
            gradient: their gradients (n, P), which become the update for a rate of 1.
        """
        ...

    def forget(self) -> None:
        """Forget what depends on the moments, which begin anew."""
        ...

    def moments_averaged(self, counts: Tensor, workers: int) -> None:
        """Note that moments have been averaged over the N `workers` of a training.

        Args:
            counts: the counts of updates (R,) from now on.
            workers: N.
        """
        ...


class Sgd:
    """m <- momentum m + g; the update is lr m.

    Args:
        like: the replicas (R, P).
        momentum: the momentum.
    """

    def __init__(self, like: Tensor, momentum: float) -> None:
        self.moments = {"momentum_buffer": torch.zeros_like(like)}
        self.decays = {"momentum_buffer": momentum}
        self.counts = torch.zeros(0)

    def update(self, rows: Tensor, x: Tensor, gradient: Tensor) -> None:
        """Make an update; see `Optimizer`."""
        [moment], [momentum] = self.moments.values(), self.decays.values()
        kernels.sgd(*arrays(rows, gradient, moment), momentum)

    def forget(self) -> None:
        """Forget nothing: there are only moments."""

    def moments_averaged(self, counts: Tensor, workers: int) -> None:
        """Note nothing: updates are not counted."""


class Adam:
    """Adam, whose second moment can be that of N batches together.

        m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
        s <- b2 s + (1 - b2) (g - mh)^2 / (1 + r)          mh = m / (1 - b1^(t-1))
        vN = max(v - c (1 - 1/N) (1 - b2^t) / (1 - b2^(t-1)) s, v / N)
        x <- x - lr m / (1 - b1^t) / (sqrt(vN / (1 - b2^t)) + eps)

    r = q / (1 - b1^(t-1))^2, and q is the share of the noise that m has of one batch's
    (`espnet_distopt.optimizers.consistent`). In the first update vN = v. c is the share
    of the noise that is a replica's own, see `noise`.

    Attributes:
        batches: N for each replica (R,); it may change between two updates.
        shares: c of T parameters, and of the others, for each replica (R, T + 1).
        ends: where each parameter tensor ends in a model (parts,).
        columns: the column of `shares` of each (parts,).
        places: the K elements that replicas compare.
        sampled: these of their last gradients (R, K).
        averaged: when first moments were averaged last, in updates, and the share of
            the noise that was left then; (R,) both.

    Args:
        like: the replicas (R, P).
        betas: b1 and b2.
        batches: N at first; with 1 it is plain Adam, and stays so.
    """

    EPS = 1e-8

    def __init__(
        self, like: Tensor, betas: tuple[float, float], batches: int = 1
    ) -> None:
        self.moments = {n: torch.zeros_like(like) for n in ("exp_avg", "exp_avg_sq")}
        self.decays = dict(zip(self.moments, betas, strict=True))
        self.counts = torch.zeros(len(like), dtype=torch.float32)
        self.batches = torch.full((len(like),), batches, dtype=torch.float64)
        self.noise = torch.zeros_like(like if batches > 1 else like[:, :0])
        self.shares = torch.ones(len(like), 1, dtype=torch.float64)
        self.ends = torch.tensor([like.shape[1]])
        self.columns = torch.zeros(1, dtype=torch.long)
        self.places = torch.zeros(0, dtype=torch.long)
        self.sampled = torch.zeros(len(like), 0, dtype=torch.float64)
        self.averaged = torch.zeros(2, len(like), dtype=torch.float64)
        self._follows_noise = batches > 1

    def update(self, rows: Tensor, x: Tensor, gradient: Tensor) -> None:
        """Make an update; see `Optimizer`."""
        read = arrays(rows, gradient, *self.moments.values(), self.counts)
        betas = (*self.decays.values(),)
        if not self._follows_noise:
            kernels.adam(*read, betas, self.EPS)
            return
        more = arrays(
            self.noise, self.batches, self.averaged, self.shares, self.ends,
            self.columns, self.places, self.sampled,
        )  # fmt: skip
        kernels.adam_of_all_batches(*read, betas, self.EPS, *more)

    def forget(self) -> None:
        """Forget the counts and the noise, because moments begin anew."""
        for each in (self.counts, self.noise, self.averaged):
            each.zero_()

    def moments_averaged(self, counts: Tensor, workers: int) -> None:
        """Note that moments have been averaged over the replicas of each training.

        Args:
            counts: the counts of updates (R,) that replicas have from now on.
            workers: N.
        """
        b1, now = self.decays["exp_avg"], self.counts.double()
        when, share = self.averaged
        share_of = kernels.noise_share.py_func  # The equation itself, on tensors.
        own = share_of(b1, now, when, 0.0)
        common = share_of(b1, now, when, share) - own
        self.averaged = torch.stack([counts.double(), common + own / workers])
        if self._follows_noise:
            b2 = self.decays["exp_avg_sq"]
            weight, new = (1 - b2 ** (t.double() - 1) for t in (self.counts, counts))
            factor = torch.where(self.counts > 1, new / weight, 1.0)
            self.noise.mul_(factor.to(self.noise.dtype)[:, None])
        self.counts = counts


class Lamb(Adam):
    """LAMB: the update of Adam, as long as the parameter tensor that it changes.

    Args:
        like: the replicas (R, P).
        betas: b1 and b2.
        sizes: the numbers of elements of the parameter tensors, in their order.
    """

    EPS = 1e-6

    def __init__(
        self, like: Tensor, betas: tuple[float, float], sizes: list[int]
    ) -> None:
        super().__init__(like, betas)
        self._ends = torch.tensor(sizes).cumsum(0)

    def update(self, rows: Tensor, x: Tensor, gradient: Tensor) -> None:
        """Make an update; see `Optimizer`."""
        super().update(rows, x, gradient)
        kernels.lengthen(*arrays(rows, x, gradient, self._ends))


@dataclass
class Learners:
    """All replicas of some trainings, their optimizer and their samples.

    Attributes:
        problem: what they are trained on.
        seeds: the seed of each of the T trainings, of its start and its samples.
        size: the number of replicas of a training, N.
        batch: the number of samples of a replica's step.
        schedule: the factor of the learning rate at each step, (steps,), float64.
        lr: the learning rate of each training, (T,), float64.
        optimizer_of: function that makes the optimizer of replicas (R, P).
        clip: the norm to which gradients are clipped.
        steps: the number of steps of a training.
        x: the replicas (R, P).
        made: the number of steps that each replica has made (R,).
        losses: the sum of all losses of each replica (R,); not finite if one was not.
        last_losses: the sum of the losses of the last tenth of the steps.
    """

    problem: Problem
    seeds: list[int]
    size: int
    batch: int
    steps: int
    schedule: Tensor
    lr: Tensor
    clip: float
    optimizer_of: Callable[[Tensor], Optimizer]
    x: Tensor = field(init=False)
    optimizer: Optimizer = field(init=False)

    def __post_init__(self) -> None:
        starts = torch.stack([self.problem.start(seed) for seed in self.seeds])
        self.x = starts.repeat_interleave(self.size, 0)
        self.optimizer = self.optimizer_of(self.x)
        self.made = torch.zeros(len(self.x), dtype=torch.long)
        self._memory = torch.empty_like(self.x[: self._at_once])
        self.losses = torch.zeros(len(self.x), dtype=torch.float64)
        self.last_losses = torch.zeros_like(self.losses)

    @property
    def _at_once(self) -> int:
        """The number of replicas that are worked on at a time."""
        return max(1, CHUNK // self.x.shape[1])

    @property
    def trainings(self) -> int:
        """T."""
        return len(self.seeds)

    def by_training(self, tensor: Tensor) -> Tensor:
        """Return a tensor (R, ...) as (T, N, ...)."""
        return torch.unflatten(tensor, 0, (self.trainings, self.size))

    def rates(self, made: int) -> Tensor:
        """Return the rate of each training (T,) after a number of steps."""
        return self.schedule[made] * self.lr

    def step(
        self,
        apply: Callable[[Tensor, Tensor, Tensor], None] | None = None,
        rows: Tensor | None = None,
        used: Callable[[Tensor, Tensor], Tensor] = lambda _, gradient: gradient,
    ) -> None:
        """Let replicas make a step: x_i <- x_i - lr_i d_i(x_i).

        Args:
            apply: function of replicas (n,), their d (n, P) and -lr (n,), which is
                called in place of the addition of -lr d to x.
            rows: the replicas (n,), ascending; None means all.
            used: function of replicas and their gradients (n, P), which returns the
                gradients that their optimizers use.
        """
        numbers = torch.arange(len(self.x)) if rows is None else rows
        made, losses = self.made[numbers], torch.zeros(0, dtype=torch.float64)
        scale = -self.schedule[made] * self.lr[numbers // self.size]
        samples = self._read(numbers, made)
        for first in range(0, len(numbers), self._at_once):
            some = slice(first, first + self._at_once)
            part = numbers[some]
            g = self._memory[: len(part)]
            its = tuple(s[some] for s in samples)
            losses = torch.cat([losses, self.problem.gradients(part, self.x, its, g)])
            g = used(part, g)
            kernels.clip(*arrays(g), self.clip)
            self.optimizer.update(part, self.x, g)
            if apply is None:
                kernels.add(*arrays(part, self.x, g, scale[some]))
            else:
                apply(part, g, scale[some])
        self.made[numbers] = made + 1
        self.losses[numbers] += losses
        self.last_losses[numbers] += losses * (made + 1 > 0.9 * self.steps)

    def _read(self, rows: Tensor, made: Tensor) -> Samples:
        """Return the samples (n, b, ...) of a step of some replicas.

        Args:
            rows: the replicas (n,).
            made: the numbers of steps that they have made (n,).
        """
        read, batch = [], self.batch
        firsts = ((made * self.size + rows % self.size) * batch).tolist()
        trainings = (rows // self.size).tolist()
        begin = 0
        for end in range(1, len(firsts) + 1):
            # Neighbours at the same step have samples side by side.
            follows = end < len(firsts) and firsts[end] == firsts[end - 1] + batch
            if follows and trainings[end] == trainings[begin]:
                continue
            seed, count = self.seeds[trainings[begin]], end - begin
            found = self.problem.samples(seed, firsts[begin], count * batch)
            read.append([torch.unflatten(each, 0, (count, batch)) for each in found])
            begin = end
        if len(read) == 1:
            return tuple(read[0])
        return tuple(torch.cat(same) for same in zip(*read, strict=True))
