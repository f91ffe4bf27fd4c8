"""The problem that the tormented learners train on: a small network follows another.

Each batch is drawn anew, and is a function of the seed, the epoch and its number. So a
training without faults sees the very same batches, and no batch is seen twice.
"""

import torch
from torch import Tensor, nn

WIDTH = 16
BATCH = 32
NOISE = 0.3
HELD_OUT = 4096
RATE = 0.003


def network(hidden: int, seed: int) -> nn.Sequential:
    """Return a network of two hidden layers, whose start is a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(
        nn.Linear(WIDTH, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, 1),
    )
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Linear):
                fan_in = layer.in_features
                layer.weight.normal_(0, 1.5 * fan_in**-0.5, generator=generator)
                layer.bias.normal_(0, 0.1, generator=generator)
    return layers


class Problem:
    """The batches of one seed, and the loss of a model on data that it never sees.

    Args:
        seed: the seed of the batches; the teacher and the held-out data are the same
            for all seeds, so that their losses can be compared.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._teacher = network(48, seed=1)
        self._held_out = self._draw(torch.Generator().manual_seed(2), HELD_OUT)

    def batch(self, epoch: int, item: int) -> tuple[Tensor, Tensor]:
        """Return the inputs (BATCH, WIDTH) and targets (BATCH, 1) of a batch."""
        number = (self._seed * 100_003 + epoch) * 1_000_003 + item
        return self._draw(torch.Generator().manual_seed(number), BATCH)

    @torch.no_grad()
    def _draw(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, WIDTH, generator=generator)
        noise = torch.randn(size, 1, generator=generator)
        return inputs, self._teacher(inputs) + NOISE * noise

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        """Return the mean squared error on the held-out data."""
        inputs, targets = self._held_out
        return float((model(inputs) - targets).square().mean())
