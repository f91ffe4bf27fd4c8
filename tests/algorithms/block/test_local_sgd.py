"""Local SGD: plain averages (docs/algorithms/block.md, LS1 and LS4)."""

import random
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import check
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import Compute, VirtualLearner
from tests.replicas import Point
from tests.virtual import along, points, started, x


def test_ls1_a_block_ends_at_the_mean_and_moments_stay() -> None:
    source = random.Random(0)
    steps = [[source.uniform(-1, 1) for _ in range(7)] for _ in range(4)]
    learners = points(
        "local_sgd",
        4,
        lambda m, r: along(m, steps[r]),
        Adam,
        period=3,
        second_moment="local",
    )
    simulation = started(learners, Compute(spread=1))
    simulation.epoch(7)
    oracle = [Point([0.25, -0.5]) for _ in steps]
    optimizers = [Adam(model.parameters(), lr=0.1) for model in oracle]
    for step in range(7):
        for model, optimizer, gradients in zip(oracle, optimizers, steps, strict=True):
            optimizer.zero_grad()
            along(model, gradients)(step)
            optimizer.step()
        if step in (2, 5, 6):  # the last block is a short one
            mean = torch.stack([model.x.detach() for model in oracle]).mean(0)
            for model in oracle:
                model.x.data.copy_(mean)
    for virtual, optimizer in zip(learners, optimizers, strict=True):
        assert x(virtual) == pytest.approx(mean.tolist(), rel=1e-12)
        mine, theirs = virtual.optimizer.state_dict(), optimizer.state_dict()
        assert mine["state"][0]["step"] == theirs["state"][0]["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                mine["state"][0][name], theirs["state"][0][name], rtol=1e-12, atol=0
            )
    assert simulation.consensus().tolist() == x(learners[0])


class Tensors(nn.Module):
    """Tensors of given sizes, filled with whole numbers."""

    def __init__(self, sizes: list[int], seed: int) -> None:
        super().__init__()
        source = random.Random(seed)
        self.tensors = nn.ParameterList(
            torch.tensor([source.randrange(1 << 20) for _ in range(n)]).double()
            for n in sizes
        )


def whole(model: Tensors, like: Tensors) -> None:
    for mine, theirs in zip(model.tensors, like.tensors, strict=True):
        mine.data.copy_(theirs)


@settings(max_examples=20, deadline=None)
@example(groups=[[6, 6], [6]], size=2)
@example(groups=[[12], [3]], size=4)
@given(
    groups=st.lists(
        st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=3
    ),
    size=st.sampled_from([2, 4]),
)
def test_ls4_every_element_is_averaged_once(groups: list[list[int]], size: int) -> None:
    """Whole numbers: sums and quarters are exact, so anything else shows."""
    sizes = [count for group in groups for count in group]
    own = [Tensors(sizes, rank) for rank in range(size)]
    learners = []
    for rank in range(size):
        model = Tensors(sizes, 0)
        tensors = iter(model.tensors)
        parts: list[Any] = [{"params": [next(tensors) for _ in g]} for g in groups]
        made = model, SGD(parts, lr=0.0), lambda _: 0.0
        learners.append(VirtualLearner(*made, "local_sgd", rank, size, period=1))
    simulation = started(learners)
    for virtual, model in zip(learners, own, strict=True):
        whole(virtual.model, model)  # type: ignore[arg-type]
    simulation.epoch(1)
    for virtual in learners:
        for index, mine in enumerate(virtual.model.tensors):  # type: ignore[arg-type,var-annotated]
            values = torch.stack([m.tensors[index].detach() for m in own])
            assert torch.equal(mine, values.sum(0) / size)


@pytest.mark.parametrize(
    ("name", "conf", "words"),
    [
        ("local_sgd", {"momentum": 0.5}, "unknown option 'momentum'; .* Known, .*: pe"),
        ("local_sgd", {"period": 0}, "local_sgd: period must be >= 1, not 0"),
        ("local_sgd", {"moments": "extrapolate"}, "one of local, average, reset"),
        ("slowmo", {"nesterov": True}, "unknown option 'nesterov'"),
        ("slowmo", {"momentum": 1.0}, r"slowmo: momentum must be in \[0, 1\), not 1"),
        ("slowmo", {"block_lr": 0.0}, "slowmo: block_lr must be > 0"),
        ("diloco", {"moments": "reset"}, "unknown option 'moments'"),
        ("diloco", {"block_lr": float("inf")}, "diloco: block_lr must be > 0 and"),
        ("diloco", {"momentum": -0.1}, "diloco: momentum must be in"),
        ("diloco", {"warmup": -1}, "diloco: warmup must be >= 0, not -1"),
    ],
)
def test_what_does_not_belong_to_a_block_is_refused(
    name: str, conf: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check(name, conf, 4)
