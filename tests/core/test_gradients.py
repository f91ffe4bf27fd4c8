"""Averaged gradients are the user's own; what cannot be averaged is refused."""

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from tests.processes import launch


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def loss(model: nn.Module, x: float) -> Tensor:
    y: Tensor = model(torch.full((2, 3), x)).square().sum()
    return y


def of(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


def two_tasks() -> tuple[list[Any], list[Any]]:
    """The gradients of two tasks, kept; and, as sums, accumulated."""
    rank = dist.get_rank()
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "allreduce") as session:
        kept = []
        for x in (1.0 + rank, 5.0 + rank):
            optimizer.zero_grad()
            loss(model, x).backward()
            kept.append(of(model))
        optimizer.zero_grad()
        summed = []
        for x in (1.0 + rank, 5.0 + rank):
            loss(model, x).backward()
            summed.append(flat(of(model)).clone())
        session.step()
        session.finish()
    return [flat(k).tolist() for k in kept], [s.tolist() for s in summed]


def test_gradients_that_are_kept_are_those_of_their_own_pass() -> None:
    wanted = []
    for x in (1.0, 5.0):
        means = []
        for rank in (0, 1):
            model = net()
            loss(model, x + rank).backward()
            means.append(flat(of(model)))
        wanted.append(torch.stack(means).mean(0))
    for kept, summed in launch(2, two_tasks):
        for found, mean in zip(kept, wanted, strict=True):
            torch.testing.assert_close(torch.tensor(found), mean)
        torch.testing.assert_close(torch.tensor(summed[0]), wanted[0])
        torch.testing.assert_close(torch.tensor(summed[1]), wanted[0] + wanted[1])


def refusal(train: Callable[[nn.Module, Session], None], name: str) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    try:
        with Session(model, optimizer, name) as session:
            train(model, session)
            session.finish()
    except InputError as error:
        return str(error)
    return repr(flat(list(model.parameters())).tolist())


def sparse(model: nn.Module, session: Session) -> None:
    for _ in range(3):
        session.learner.optimizer.zero_grad()
        model(torch.tensor([1, 2 + dist.get_rank()])).sum().backward()
        session.learner.optimizer.step()
        session.step()


def in_backward(drops: bool, model: nn.Module, session: Session) -> None:
    def step(parameter: Tensor) -> None:
        assert parameter.grad is not None
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad
        if drops:
            parameter.grad = None

    for parameter in model[1].parameters():  # type: ignore[index, union-attr]
        parameter.register_post_accumulate_grad_hook(step)
    model[0].requires_grad_(False)  # type: ignore[index, operator]
    for _ in range(3):
        model(torch.tensor([1, 2 + dist.get_rank()])).sum().backward()
        model[0].requires_grad_(True)  # type: ignore[index, operator]
        session.step()
        model[0].requires_grad_(False)  # type: ignore[index, operator]


def dropping(model: nn.Module, session: Session) -> None:
    in_backward(True, model, session)


def keeping(model: nn.Module, session: Session) -> None:
    in_backward(False, model, session)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (sparse, "gradient of parameter '0.weight' is sparse"),
        (dropping, "within the backward pass, before the learners' gradients"),
        (keeping, "within the backward pass, before the learners' gradients"),
    ],
)
def test_what_cannot_be_averaged_is_refused_or_right(
    train: Callable[[nn.Module, Session], None], words: str
) -> None:
    for message in launch(2, refusal, train, "allreduce"):
        assert words in message and "\n" not in message
    first, second = launch(2, refusal, train, "local_sgd")
    assert first == second and first.startswith("[")


def noisy(name: str) -> tuple[float, list[float], str]:
    """Add each learner's own noise to gradients after they were averaged."""
    stream = io.StringIO()
    logging.getLogger("espnet_distopt").addHandler(logging.StreamHandler(stream))
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, name) as session:
        optimizer.zero_grad()
        loss(model, 1.0).backward()
        for p in model.parameters():
            p.grad += dist.get_rank()
        optimizer.step()
        session.step()
        with session.consensus() as distance:
            found = flat(list(model.parameters())).tolist()
    return distance, found, stream.getvalue()


def test_the_distance_of_replicas_that_should_be_equal_is_measured() -> None:
    (first, here, told), (second, there, _) = launch(2, noisy, "allreduce")
    assert here == there
    assert first == second > 0.01
    assert "allreduce keeps them equal" in told
