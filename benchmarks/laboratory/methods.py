"""The methods of the laboratory, each as its published equation on matrices.

Replicas x_i are the rows of X (T, N, P); u_i(x_i) is the update that the optimizer of
replica i makes with a gradient at x_i. `train` runs T trainings to their end, and
returns their consensus models (T, P).

    allreduce   x <- x - u((1/N) sum_i g_i(x))
    d1d_grad    x_{k+1} = x_k - u((1/N) sum_i g_i(x_{k-1}))
    dpsgd       X_{k+1} = W_k X_k - U(X_k)             d1d_model: W = 1/N everywhere
    adpsgd      as dpsgd, but each pair by itself, in the order of a recorded schedule
    blocks      BMUF, BMUF-Adam, Local SGD, SlowMo and DiLoCo, see `Blocks`
    adasum      x <- x + tree(Delta_1, ..., Delta_N), see `combined`

Replicas of all-reduce are equal, so that one is enough, which has the samples of all.
So is one for each node of H-ADPSGD.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from espnet_distopt.algorithms.block.compression import (
    CHUNK,
    add_decoded,
    encode,
    kept_of_chunk,
)
from espnet_distopt.algorithms.block.options import BlockConfig
from espnet_distopt.core.mixing import Topology, mixing_matrix, randomized_ring
from laboratory import kernels
from laboratory.kernels import arrays
from laboratory.learners import Adam, Learners
from laboratory.noise import NoiseShares
from laboratory.schedules import Wave

# All-reduce, and gradients that come one step late


def all_reduce(learners: Learners) -> Tensor:
    """Train with all-reduce: one replica has the samples of all learners."""
    for _ in range(learners.steps):
        learners.step()
    return learners.x


def late_gradients(learners: Learners) -> Tensor:
    """Train with d1d_grad: each step uses the gradient of the step before."""
    late = torch.zeros_like(learners.x)

    def used(rows: Tensor, gradient: Tensor) -> Tensor:
        before = late[rows]
        late[rows] = gradient
        return before

    for _ in range(learners.steps):
        learners.step(used=used)
    return learners.x


# Gossip


class Mixing:
    """The product W_k X, see `espnet_distopt.core.mixing`.

    Args:
        topology: the neighbours of a learner.
        size: N.
        seed: the seed of the orders of a randomized ring.
        per_node: the learners of a node, for `alternating`.
    """

    def __init__(
        self, topology: Topology, size: int, seed: int = 0, per_node: int = 1
    ) -> None:
        self._topology, self._size = topology, size
        self._seed, self._per_node = seed, per_node

    def __call__(self, x: Tensor, k: int, out: Tensor) -> Tensor:
        """Write W_k X of replicas X (T, N, P) to `out`, and return it."""
        size, seed = self._size, self._seed
        match self._topology:
            case "ring" | "randomized_ring" as topology:
                random = topology == "randomized_ring"
                order = randomized_ring(seed, k, size) if random else range(size)
                for each, mixed in zip(*arrays(x, out), strict=True):
                    kernels.ring_means(np.array(order), each, mixed)
            case "complete":
                out.copy_(x.mean(1, keepdim=True))
            case "alternating":
                found = mixing_matrix("alternating", size, k, seed, self._per_node)
                torch.matmul(torch.from_numpy(found).to(x), x, out=out)
        return out


def dpsgd(learners: Learners, mixing: Mixing) -> Tensor:
    """Train with D-PSGD: X_{k+1} = W_k X_k - U(X_k)."""
    mixed = torch.empty_like(learners.x)
    noise, everybody = NoiseShares(learners), torch.arange(len(learners.x))
    each = torch.eye(learners.size, dtype=torch.float64)[None]

    def apply(rows: Tensor, update: Tensor, scale: Tensor) -> None:
        kernels.add(*arrays(rows, mixed, update, scale))

    for k in range(learners.steps):
        mixing(learners.by_training(learners.x), k, learners.by_training(mixed))
        learners.step(apply)
        learners.x, mixed = mixed, learners.x
        noise.compare_on(mixing(each, k, torch.empty_like(each))[0])
        noise.sample(everybody)
    return learners.by_training(learners.x).mean(1)


def adpsgd(learners: Learners, waves: Iterable[Wave]) -> Tensor:
    """Train with AD-PSGD, by a schedule (`laboratory.schedules`).

    The copy c_i is what learner i shows to others. It is x_i as of the end of a step,
    and has moved to the mean of each pair since. The end of the next step takes over
    where it has moved to:

        x_i <- c_i - u_i(x_i) ,  c_i <- x_i

    While the copy is lent or kept for an exchange, it stays. h_i are the updates that
    it does not have yet, and are zero otherwise:

        h_i <- h_i + u_i(x_i) ,  x_i <- c_i - h_i
    """
    x, copy = learners.x, learners.x.clone()
    behind = torch.zeros_like(x)
    is_behind, keeps = torch.zeros(2, len(x), dtype=torch.bool)
    lasting: dict[int, tuple[Tensor, Tensor]] = {}
    noise = NoiseShares(learners, pairs=True)

    def apply(rows: Tensor, update: Tensor, scale: Tensor) -> None:
        state = x, copy, behind, is_behind, keeps
        kernels.renew(*arrays(rows, *state, update, scale))

    for wave in waves:
        keeps.zero_()
        keeps[wave.kept] = True
        learners.step(apply, wave.rows)
        noise.use(wave.rows)
        noise.sample(wave.rows)
        noise.publish(wave.rows[~keeps[wave.rows]])
        for exchanges in wave.exchanges:
            if exchanges.pairs:
                pairs = torch.tensor(exchanges.pairs)
                kernels.average(*arrays(pairs, copy))
                a, p = pairs.T
                both = noise.deviations(a, p).repeat(2, 1)
                noise.compare(torch.cat([a, p]), both, 0.5)
            if exchanges.begun:
                numbers, a, p = torch.tensor(exchanges.begun).T
                half = (copy[p] - copy[a]).mul_(0.5)
                found = zip(half, noise.deviations(a, p), strict=True)
                lasting |= dict(zip(numbers.tolist(), found, strict=True))
            if exchanges.ended:
                for number, rank, sign in exchanges.ended:
                    copy[rank].add_(lasting[number][0], alpha=sign)
                rows = torch.tensor([rank for _, rank, _ in exchanges.ended])
                each = torch.stack([lasting[n][1] for n, _, _ in exchanges.ended])
                noise.compare(rows, each, 0.5)
    x.copy_(copy - behind)
    return learners.by_training(x).mean(1)


# Blocks of local steps


class Blocks:
    """Block momentum over local steps.

        Delta <- eta Delta + zeta (mean_i x_i - start)     theta <- theta + Delta
        rho   <- eta rho + zeta tau                        x_i = start = theta + a Delta

    a is eta with Nesterov's momentum (k = eta rho), and 0 without (k = eta times the
    rho before). To this k, (zeta - 1) tau is added. Adam's moments are averaged, or
    extrapolated by k updates from the averages:

        m <- mbar + w kappa (mbar - m_0)   kappa = b^tau (1 - b^k) / (1 - b^tau)
        v <- vbar + kappa (vbar - v_0)     w: how far momentum has set in

    A block goes g = zeta / (1 - eta) times as far as its mean, and Adam's second moment
    is that of N / g batches together if the rule says so. Where learners send less than
    that (`exchange`, `keep`), the means are those of what they send.

    All symbols but the replicas are one number or row for each training.

    Args:
        learners: the replicas.
        config: the options of the method.
    """

    HORIZON = 1000.0

    def __init__(self, learners: Learners, config: BlockConfig) -> None:
        self._learners, self._period = learners, config.period
        self._rule = config.rule(learners.size)
        self._rounds = config.exchange == "bfloat16"
        self._kept = kept_of_chunk(config.keep) if config.compresses else 0
        chunks = math.ceil(learners.x.shape[1] / CHUNK) if self._kept else 0
        self._unsent = learners.x.new_zeros(len(learners.x), chunks * CHUNK)
        self.theta = learners.by_training(learners.x)[:, 0].clone()
        self.delta = torch.zeros_like(self.theta)
        zeros = torch.zeros(learners.trainings, dtype=torch.float64)
        self._ahead, self._rho, self._agreeing = zeros, zeros, zeros
        self._last = zeros
        self._taken = 0
        self._noise = NoiseShares(learners)
        optimizer = learners.optimizer
        self._began = zeros
        self._moments = {
            name: torch.zeros_like(self.theta) for name in optimizer.moments
        }
        self._correct()

    def train(self) -> Tensor:
        """Train to the end."""
        learners, rule = self._learners, self._rule
        rates = torch.zeros_like(self._rho)
        tau, compared = 0, 1
        for k in range(learners.steps):
            rates += learners.rates(k)
            learners.step()
            tau += 1
            if tau == compared:
                self._noise.sample(torch.arange(len(learners.x)))
            if tau == self._period or k == learners.steps - 1:
                self._end_block(tau, rates / tau)
                rates, tau = torch.zeros_like(rates), 0
                compared = compared % self._period + 1
        if rule.evaluates_start:
            return self._start()
        return self.theta

    def _start(self) -> Tensor:
        return torch.addcmul(self.theta, self.delta, self._column(self._ahead))

    def _column(self, values: Tensor) -> Tensor:
        return values.to(self.theta)[:, None]

    def _end_block(self, tau: int, rates: Tensor) -> None:
        rule, x = self._rule, self._learners.by_training(self._learners.x)
        self._noise.compare_together()
        start, mean = self._start(), x.mean(1)
        if rule.warmup is None:
            agrees = ((mean - start) * self.delta).sum(1) > 0
            self._agreeing = torch.where(agrees, self._agreeing + tau, 0.0)
        if self._kept:
            mean = self._largest(x, start)
        elif self._rounds:
            mean = _rounded(x, start)
        change = mean - start
        eta, zeta = self._factors()
        self._taken += tau
        plain = (eta == 0) & (zeta == 1)
        if rule.follows_lr:
            known = (self._last > 0) & ~plain
            factor = torch.where(known, rates / self._last.clamp(min=1e-300), 1.0)
            self.delta *= self._column(factor)
            self._last = rates
        before, self._rho = self._rho, eta * self._rho + zeta * tau
        self.delta = self._column(eta) * self.delta + self._column(zeta) * change
        self.theta = torch.where(plain[:, None], mean, self.theta + self.delta)
        self._ahead = eta if rule.nesterov else torch.zeros_like(eta)
        x.copy_(self._start()[:, None].expand_as(x))
        k = eta * (self._rho if rule.nesterov else before) + (zeta - 1) * tau
        self._end_moments(tau, torch.where(plain, 0.0, k.clamp(min=0)))
        self._correct()

    def _largest(self, x: Tensor, start: Tensor) -> Tensor:
        """Return the start and the mean (T, P) of the largest changes, see `keep`."""
        learners, size = self._learners, start.shape[1]
        self._unsent[:, :size] += (x - start[:, None]).flatten(0, 1)
        chunks = self._unsent.view(-1, CHUNK)
        sent = torch.zeros_like(chunks)
        add_decoded(encode(chunks, self._kept), self._kept, sent)
        chunks -= sent
        self._unsent[:, size:] = 0
        of_replicas = sent.view_as(self._unsent)[:, :size]
        return start + learners.by_training(of_replicas).mean(1)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return eta and zeta, by what is known of the blocks so far."""
        rule, w = self._rule, self._strength()
        return w * rule.momentum, 1 + w * (rule.block_lr - 1)

    def _strength(self) -> Tensor:
        """Return how far momentum has set in, w_n, (T,)."""
        if self._rule.warmup is None:
            return -torch.expm1(-self._agreeing / self.HORIZON)
        return torch.full_like(self._rho, float(self._taken >= self._rule.warmup))

    def _correct(self) -> None:
        """Correct Adam's second moment for as many batches as the next block is for."""
        optimizer = self._learners.optimizer
        if self._rule.corrected_workers > 1 and isinstance(optimizer, Adam):
            eta, zeta = self._factors()
            batches = (self._rule.corrected_workers * (1 - eta) / zeta).clamp(min=1)
            optimizer.batches = batches.repeat_interleave(self._learners.size)

    def _end_moments(self, tau: int, k: Tensor) -> None:
        """End the block of the optimizer's moments; see the class.

        Args:
            tau: the updates of the block.
            k: the updates by which the next start is ahead of the mean, (T,).
        """
        policy, learners = self._rule.moments, self._learners
        if policy == "local":
            return
        optimizer = learners.optimizer
        made, now = torch.full_like(k, tau), torch.zeros_like(k)
        if len(optimizer.counts):
            now = learners.by_training(optimizer.counts)[:, 0].double()
            made = now - self._began
        k = k * made / tau if policy == "extrapolate" else torch.zeros_like(k)
        for name, moment in optimizer.moments.items():
            rows = learners.by_training(moment)
            decay = optimizer.decays[name]
            if self._rounds:
                new = _rounded(rows, self._moments[name] * decay**self._period)
            else:
                new = rows.mean(1)
            if policy == "reset":
                new.zero_()
            elif policy == "extrapolate":
                kappa = gain(decay, made, k)
                if name != "exp_avg_sq":
                    kappa = kappa * self._strength()
                start = self._moments[name]
                ahead = torch.addcmul(new, new - start, self._column(kappa))
                if name == "exp_avg_sq":
                    floor = torch.where(kappa == 0, 0.0, decay ** (made + k))
                    torch.maximum(ahead, start * self._column(floor), out=ahead)
                new = ahead
            self._moments[name] = new
            rows.copy_(new[:, None].expand_as(rows))
        if policy == "reset":
            optimizer.forget()
            self._began = torch.zeros_like(now)
        elif len(optimizer.counts):
            self._set_counts(now + k)

    def _set_counts(self, counts: Tensor) -> None:
        """Write the counts of updates (T,) to all replicas, as float32 has them."""
        size = self._learners.size
        counts = counts.clamp(max=2.0**21).float()
        of_rows = counts.repeat_interleave(size)
        self._learners.optimizer.moments_averaged(of_rows, size)
        self._began = counts.double()


def _rounded(x: Tensor, start: Tensor) -> Tensor:
    """Return the start and the mean (T, P) of the changes of x (T, N, P), rounded."""
    changes = (x - start[:, None]).to(torch.bfloat16)
    return start + changes.sum(1).div_(x.shape[1]).to(start)


def gain(decay: float, tau: Tensor, k: Tensor) -> Tensor:
    """Return kappa = b^tau (1 - b^k) / (1 - b^tau) without cancellation."""
    if decay == 0:
        return torch.zeros_like(k)
    log = math.log(decay)
    return (tau * log).exp() * torch.expm1(k * log) / torch.expm1(tau * log)


# Adasum

TINY = math.sqrt(torch.finfo(torch.float64).tiny)
CANCELLED = 1e-12


def combined(vectors: Tensor) -> Tensor:
    """Return Adasum of vectors (T, N, n), (T, n).

        Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

    Adjacent pairs are combined, then adjacent pairs of the results, and so on; the last
    one of an odd number goes on as it is. The coefficient of a vector is 1 if it is
    zero, or what rounding has left of vectors that cancel (`lengths` are those that it
    would have if they did not).
    """
    lengths = vectors.new_zeros(*vectors.shape[:2], 1, dtype=torch.float64)
    while (count := vectors.shape[1]) > 1:
        pairs = [slice(first, count - count % 2, 2) for first in (0, 1)]
        a, b = (vectors[:, pair] for pair in pairs)
        half = (a * b).sum(2, keepdim=True, dtype=torch.float64) / 2
        parts, sums = [], torch.zeros_like(half)
        for pair, vector in zip(pairs, (a, b), strict=True):
            square = vector.square().sum(2, keepdim=True, dtype=torch.float64)
            length = torch.maximum(lengths[:, pair], square.sqrt())
            zero = (square < TINY) | (square < CANCELLED * length.square())
            share = 1 - half / square.masked_fill(zero, math.inf)
            sums.addcmul_(share.abs(), length)
            parts.append(share.to(vector) * vector)
        last = slice(count - count % 2, count)
        vectors = torch.cat([parts[0].add_(parts[1]), vectors[:, last]], 1)
        lengths = torch.cat([sums, lengths[:, last]], 1)
    return vectors[:, 0]


def adasum(learners: Learners, period: int) -> Tensor:
    """Train with Adasum of the updates of `period` local steps, tensor by tensor."""
    sizes = [math.prod(shape) for shape in learners.problem.shapes]
    shared = learners.by_training(learners.x)[:, 0].clone()
    for k in range(1, learners.steps + 1):
        learners.step()
        if k % period == 0 or k == learners.steps:
            x = learners.by_training(learners.x)
            updates = torch.split(x - shared[:, None], sizes, 2)
            shared += torch.cat([combined(update) for update in updates], 1)
            x.copy_(shared[:, None].expand_as(x))
    return shared
