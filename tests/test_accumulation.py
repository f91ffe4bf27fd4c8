"""Updates of several backward passes: `Session.no_sync`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session
from tests.processes import launch

SIZES = [[2, 3, 5], [4, 1, 1]]
"""Learner -> the samples of the passes of an update."""
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("allreduce", {}),
    ("hadpsgd", {"per_node": 2}),
    ("bmuf", {"per_node": 2}),
    ("d1d_grad", {}),
]


def net() -> nn.Module:
    """A model with a parameter that only the first pass reaches."""
    torch.manual_seed(0)
    found = nn.ModuleDict({"body": nn.Linear(3, 2), "once": nn.Linear(2, 1)})
    return found.double()


def loss(model: Any, rank: int, update: int, number: int) -> Tensor:
    source = torch.Generator().manual_seed(100 * rank + 10 * update + number)
    size = SIZES[rank][number]
    x = torch.randn(size, 3, generator=source, dtype=torch.float64)
    found = model["body"](x)
    if number == 0:
        found = model["once"](found)
    return found.square().mean() / len(SIZES[0])  # type: ignore[no-any-return]


def update(model: nn.Module, session: Session, rank: int, number: int) -> None:
    """The backward passes of an update, of which the last one is averaged."""
    for each, size in enumerate(SIZES[rank]):
        session.begin_batch(size)
        if each + 1 < len(SIZES[rank]):
            with session.no_sync():
                loss(model, rank, number, each).backward()  # type: ignore[no-untyped-call]
        else:
            loss(model, rank, number, each).backward()  # type: ignore[no-untyped-call]


def trained(methods: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    rank, found = dist.get_rank(), []
    for name, options in methods:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        with Session(model, optimizer, name, **options) as session:
            session.metrics()
            sent = []
            for number in range(4):
                optimizer.zero_grad()
                update(model, session, rank, number)
                optimizer.step()
                session.step()
                sent.append(session.metrics()["bytes"])
            flat = nn.utils.parameters_to_vector(model.parameters()).tolist()
        found.append({"model": flat, "bytes": sent[1]})
    return found


def expected(delay: int) -> list[float]:
    """The parameters after 4 updates along the mean of all samples' gradients."""
    model = net()
    parameters = list(model.parameters())
    late: list[Any] = [None] * delay
    totals = [sum(sizes) for sizes in SIZES]
    for number in range(4):
        mean = [torch.zeros_like(p) for p in parameters]
        for rank, sizes in enumerate(SIZES):
            for each in range(len(sizes)):
                own = torch.autograd.grad(
                    loss(model, rank, number, each), parameters, allow_unused=True
                )
                for total, gradient in zip(mean, own, strict=True):
                    if gradient is not None:
                        total += gradient * totals[rank] / sum(totals)
        late.append(mean)
        now = late.pop(0)
        with torch.no_grad():
            for p, g in zip(parameters, now or [], strict=now is not None):
                p -= 0.1 * g
    return nn.utils.parameters_to_vector(parameters).tolist()


def test_gradients_are_averaged_once_an_update() -> None:
    one, other = launch(2, trained, METHODS)
    size = sum(p.numel() for p in net().parameters())
    for (name, _), mine, theirs in zip(METHODS, one, other, strict=True):
        assert mine["model"] == theirs["model"], name
        np.testing.assert_allclose(
            mine["model"], expected(delay=int(name == "d1d_grad")), rtol=1e-12
        )
        # The gradients, and two numbers and a mark for each of four parameters.
        assert mine["bytes"] == 8 * (size + 6), name


def test_passes_that_are_each_averaged_send_as_many_times() -> None:
    found = launch(2, without_no_sync)
    size = sum(p.numel() for p in net().parameters())
    assert found[0] == 3 * 8 * (size + 6)


def interrupted(cleared: bool) -> list[float]:
    """End an epoch within an accumulation that has reached `once` on learner 0 only."""
    model, rank = net(), dist.get_rank()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "allreduce") as session:
        for each in range(2):
            session.begin_batch(SIZES[rank][each])
            with session.no_sync():
                loss(model, rank, 0, 0 if rank == each == 0 else 1).backward()  # type: ignore[no-untyped-call]
        if cleared:
            optimizer.zero_grad()
        session.finish()
        session.begin_batch(SIZES[rank][2])
        loss(model, rank, 0, 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        session.step()
        return nn.utils.parameters_to_vector(model.parameters()).tolist()


@pytest.mark.parametrize("cleared", [False, True])
def test_what_an_epoch_leaves_over_counts_if_it_is_still_there(cleared: bool) -> None:
    model = net()
    parameters = list(model.parameters())
    passes = [[2], [2]] if cleared else [[0, 1, 2], [1, 1, 2]]
    counts = [sizes[2:] if cleared else sizes for sizes in SIZES]
    weights = [sum(count) for count in counts]
    for rank, numbers in enumerate(passes):
        total = torch.stack([loss(model, rank, 0, number) for number in numbers]).sum()
        (total * weights[rank] / sum(weights)).backward()  # type: ignore[no-untyped-call]
    SGD(parameters, lr=0.1).step()
    one, other = launch(2, interrupted, cleared)
    assert one == other
    expected = nn.utils.parameters_to_vector(parameters).tolist()
    np.testing.assert_allclose(one, expected, rtol=1e-12)


def without_no_sync() -> float:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "allreduce") as session:
        session.metrics()
        for number in range(3):
            loss(model, dist.get_rank(), 0, number).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        session.step()
        return session.metrics()["bytes"]


def never_averaged(inside: bool) -> str:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    try:
        with Session(model, optimizer, "allreduce") as session:
            with session.no_sync():
                loss(model, 0, 0, 0).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if inside:
                    session.step()
            session.step()
    except (InputError, PeerLostError) as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("inside", [True, False])
def test_an_update_that_was_never_averaged_is_an_error(inside: bool) -> None:
    for text in launch(2, never_averaged, inside):
        assert "leave no_sync() for the last backward pass" in text


@pytest.mark.parametrize("name", ["allreduce", "d1d_grad", "adpsgd", "bmuf_adam"])
def test_one_learner_has_nothing_to_average(name: str) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, name) as session:
        with session.no_sync():
            loss(model, 0, 0, 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        session.step()
