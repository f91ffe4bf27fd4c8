"""How far a block goes, and which training it stands for.

The vector is BM8 of docs/algorithms/block.md.
"""

from typing import Any

import pytest
import torch
from torch.optim import Adam

from espnet_distopt.simulation import Simulation, VirtualLearner
from tests.replicas import Point

WORKERS, STEPS = 8, 400
GAIN: dict[str, tuple[float, dict[str, Any]]] = {
    "local_sgd": (1, {"second_moment": "local"}),
    "slowmo": (2, {"moments": "local"}),
    "diloco": (7, {"warmup": 0}),
    "bmuf_adam": (8, {"warmup": 0}),
}
"""Algorithm -> its gain among eight workers, and its options."""


def speed(name: str, size: int, batches: float = 1.0, **options: Any) -> float:
    """Return how far the mean goes in a step, in the second half of the steps.

    Learners see noise about the slope 0.2. The moments look back on 200 steps.

    Args:
        name: the algorithm.
        size: the number of learners.
        batches: the number of batches whose mean each gradient is.
        options: the algorithm's options.
    """

    def make(rank: int) -> VirtualLearner:
        model = Point([0.0] * 1000)

        def gradient(step: int) -> float:
            seed = torch.Generator().manual_seed(1000 * step + rank)
            noise = torch.randn(1000, generator=seed, dtype=torch.float64)
            (model.x * (0.2 + noise / batches**0.5)).sum().backward()
            return 0.0

        optimizer = Adam(model.parameters(), lr=0.01, betas=(0.9, 0.995))
        return VirtualLearner(model, optimizer, gradient, name, rank, size, **options)

    simulation = Simulation([make(rank) for rank in range(size)])
    simulation.start()
    ends = []
    for _ in range(2):
        simulation.epoch(STEPS // 2)
        ends.append(-float(simulation.consensus().mean()))
    return (ends[1] - ends[0]) / (STEPS // 2)


@pytest.mark.parametrize("name", GAIN)
def test_bm8_a_block_is_gain_times_as_many_steps_of_one_worker(name: str) -> None:
    """Adam with N / gain batches, which it stands for, goes sqrt(N / gain) times."""
    gain, options = GAIN[name]
    found = speed(name, WORKERS, period=4, **options) / gain
    whole = speed("allreduce", 1, WORKERS / gain)
    print(f"| `{name}` | {gain} | {found:.5f} | {whole:.5f} |")
    assert found == pytest.approx(speed("allreduce", 1), rel=0.03)
    mu = 0.2**2
    expected = ((mu + 1) / (mu + gain / WORKERS)) ** 0.5
    assert whole / found == pytest.approx(expected, rel=0.05)
