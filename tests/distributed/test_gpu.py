"""Sessions on a GPU. Two learners share it, and communicate through gloo."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.session import Session
from tests.processes import launch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU"
)
OPTIONS: dict[str, dict[str, Any]] = {
    "hadpsgd": {"per_node": 2},
    "bmuf_adam": {"period": 3, "delay": 2, "exchange": "bfloat16"},
}


def net(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))


def train(session: Session, model: nn.Module, optimizer: Any, steps: int) -> None:
    source = torch.Generator().manual_seed(dist.get_rank())
    place = next(model.parameters()).device
    for _ in range(steps):
        x = torch.randn(16, 8, generator=source).to(place)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        session.step()


def trained(name: str, device: str) -> list[float]:
    model = net(32).to(device)
    optimizer = Adam(model.parameters(), lr=0.01)
    with Session(model, optimizer, name, **OPTIONS.get(name, {})) as session:
        train(session, model, optimizer, 11)
        with session.consensus():
            found = nn.utils.parameters_to_vector(model.parameters())
            return found.tolist()  # type: ignore[no-any-return]


WIDTH = 1 << 20
"""The width of a layer for which copies take as long as layers."""

TOGETHER = [name for name, e in ALGORITHMS.items() if not e.algorithm.wants_gossip]


@pytest.mark.parametrize("name", [*TOGETHER, "hadpsgd"])
def test_a_training_is_that_of_the_cpu(name: str) -> None:
    ours, cpu = launch(2, trained, name, "cuda"), launch(2, trained, name, "cpu")
    np.testing.assert_allclose(ours[0], ours[1])
    np.testing.assert_allclose(ours[0], cpu[0], rtol=0, atol=1e-3)


def gossiped(exchange: str, own_stream: bool) -> tuple[float, float, float]:
    """Return the mean before and after, and the number of exchanges.

    The layers are wide, so that copies, layers and corrections overlap.
    """
    model = net(WIDTH).to("cuda")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # The reference that bfloat16 rounds against.
    optimizer = SGD(model.parameters(), lr=0.0)
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with (
        torch.cuda.stream(stream),
        Session(model, optimizer, "adpsgd", exchange=exchange) as session,
    ):
        params = session.learner.params
        with torch.no_grad():
            params.fill_(float(dist.get_rank()))
        before = session.mean(float(params.mean()))
        train(session, model, optimizer, 200)
        session.finish()
        exchanges = session.metrics()["exchanges"]
        after = session.mean(float(params.double().mean()))
        spread = float(params.max() - params.min())
    assert spread < 1e-5, "a correction has met parameters that were being written"
    return before, after, exchanges


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("exchange", ["float32", "bfloat16"])
def test_gossip_conserves_the_mean(exchange: str, own_stream: bool) -> None:
    for before, after, exchanges in launch(2, gossiped, exchange, own_stream):
        assert exchanges > 3
        assert after == pytest.approx(before, abs=1e-5)
