"""The corrected steps of Adam's family, written anew for one tensor in float64."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def gradients(count: int, size: int = 7, seed: int = 1) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield 0.3 + torch.randn(size, generator=generator, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """The equations of one optimizer and of its corrected second moment.

    Attributes:
        rule: adam, nadam or radam.
        decoupled: whether weight decay shrinks the parameters by themselves.
        batches: N; 1 is the optimizer as it is.
    """

    rule: str
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    batches: int = 16

    def run(self, x: Tensor, given: Sequence[Tensor | None]) -> Tensor:
        """Return x after the gradients; where there is None, nothing happens."""
        b1, b2 = self.betas
        m, v, s = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
        t, product = 0, 1.0
        for gradient in given:
            if gradient is None:
                continue
            t += 1
            g = -gradient if self.maximize else gradient
            if self.decoupled:
                x = x - self.lr * self.weight_decay * x
            else:
                g = g + self.weight_decay * x
            if t > 1:
                ratio = b1 ** (t - 1)
                r = (1 - b1) * (1 + ratio) / ((1 + b1) * (1 - ratio))
                s = b2 * s + (1 - b2) * (g - m / (1 - ratio)).square() / (1 + r)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g.square()
            whole = v / (1 - b2**t)
            if t > 1:
                noise = s / (1 - b2 ** (t - 1))
                less = whole - noise + noise / self.batches
                whole = torch.where(
                    less > whole / self.batches, less, whole / self.batches
                )
            now, then = self.momenta(t), self.momenta(t + 1)
            product *= now
            x = x - self.lr * self.step(m, g, whole, t, (now, then, product))
        return x

    def momenta(self, t: int) -> float:
        """Return NAdam's schedule of b1."""
        return self.betas[0] * (1 - 0.96 ** (0.004 * t) / 2)

    def step(
        self, m: Tensor, g: Tensor, v: Tensor, t: int, mu: tuple[float, float, float]
    ) -> Tensor:
        """Return the update over the learning rate; v is the one to divide by."""
        b1, b2 = self.betas
        mean = m / (1 - b1**t)
        if self.rule == "adam":
            return mean / (v.sqrt() + self.eps)
        if self.rule == "nadam":
            now, then, product = mu
            ahead = then * m / (1 - product * then) + (1 - now) * g / (1 - product)
            return ahead / (v.sqrt() + self.eps)
        longest = 2 / (1 - b2) - 1
        length = longest - 2 * t * b2**t / (1 - b2**t)
        if length <= 5:
            return mean
        share = (length - 4) * (length - 2) * longest
        share /= (longest - 4) * (longest - 2) * length
        # RAdam adds eps before it corrects the bias.
        root = (v.sqrt() + self.eps / (1 - b2**t) ** 0.5) / share**0.5
        return mean / root
