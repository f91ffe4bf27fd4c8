"""Gradients in buckets, averaged beside the backward pass, between real processes."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.algorithms.synchronous import allreduce
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session
from tests.processes import launch

pytestmark = pytest.mark.processes

SIZE = 3


class Net(nn.Module):
    """Some layers, the last of which only some learners use in some steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.rare = nn.Linear(5, 5)

    def forward(self, x: Tensor, rare: bool) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.rare(x) if rare else x


def batch(rank: int, step: int) -> Tensor:
    source = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(2 + rank, 5, generator=source)


def uses_rare(rank: int, step: int) -> bool:
    return (rank + step) % 2 == 0


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    value: Tensor = model(batch(rank, step), uses_rare(rank, step)).square().mean()
    return value


def train(name: str, options: dict[str, int], bucket: int) -> list[float]:
    allreduce.FIRST = allreduce.BUCKET = bucket
    rank = dist.get_rank()
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Session(model, optimizer, name, **options) as session:
        for epoch in range(2):
            for step in range(3):
                session.begin_batch(len(batch(rank, step)))
                optimizer.zero_grad()
                loss(model, rank, 3 * epoch + step).backward()
                optimizer.step()
                session.step()
            session.finish()
        session.enter_consensus()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def whole() -> Tensor:
    """Train one model on the batches of all learners together."""
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        optimizer.zero_grad()
        samples = [len(batch(rank, step)) for rank in range(SIZE)]
        for rank, count in enumerate(samples):
            (loss(model, rank, step) * count / sum(samples)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    ("name", "options"),
    [("allreduce", {}), ("hadpsgd", {"per_node": SIZE}), ("bmuf", {"per_node": SIZE})],
)
def test_any_bucket_gives_the_gradient_of_the_whole_batch(
    name: str, options: dict[str, int]
) -> None:
    for bucket in (1 << 20, 120, 8):
        found = launch(SIZE, train, name, options, bucket)
        for params in found:
            assert params == found[0]
            assert params == pytest.approx(whole().tolist(), rel=1e-5, abs=1e-6)


class Fails(torch.autograd.Function):
    """The backward pass ends here, as for want of memory."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *_: Tensor) -> Tensor:
        raise RuntimeError("no memory")


def fail_once(again: bool) -> str:
    """Go on after a backward pass that has failed on learner 0; return the error."""
    allreduce.FIRST = allreduce.BUCKET = 120
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    try:
        with Session(model, optimizer, "allreduce") as session:
            if session.learner.rank == 0:
                hidden = Fails.apply(model.layers[0](batch(0, 0)))
                for layer in model.layers[1:]:
                    hidden = layer(hidden)
                with pytest.raises(RuntimeError, match="no memory"):
                    model.rare(hidden).sum().backward()
            if again:
                loss(model, 0, 0).backward()
            else:
                session.finish()
    except (InputError, PeerLostError) as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("again", [True, False])
def test_nobody_averages_parts_of_two_backward_passes(again: bool) -> None:
    own, other = launch(2, fail_once, again)
    assert "learner 0" in own
    assert "an earlier backward pass has failed after a part of its gradients" in own
    assert "learner 0 ended with InputError" in other
