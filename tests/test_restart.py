"""Beginning anew at a model that was loaded while the session is open."""

import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from tests.core.test_changes import Net, Open, flat
from tests.processes import launch


def test_a_restart_is_for_between_epochs() -> None:
    one = Open("bmuf")
    one.step()
    with pytest.raises(InputError, match=r"step 1: .* between epochs"):
        one.session.restart_from_model()
    with (
        one.session.consensus(),
        pytest.raises(InputError, match="the model holds the consensus"),
    ):
        one.session.restart_from_model()
    one.session.restart_from_model()


def test_a_restart_needs_the_parameters_that_are_trained() -> None:
    one = Open()
    state = {name: t.clone() for name, t in one.model.state_dict().items()}
    one.model.load_state_dict(state, assign=True)
    with pytest.raises(InputError, match=r"'body\.weight' .*assign=True"):
        one.session.restart_from_model()


def gradient(model: Net, rank: int, step: int) -> None:
    x = torch.full((2, 3), 0.3 + rank) + 0.1 * step
    model(x).square().mean().backward()


def epoch(one: Session, model: Net, rank: int) -> None:
    optimizer = one.learner.optimizer
    for step in range(5):
        optimizer.zero_grad()
        gradient(model, rank, step)
        optimizer.step()
        one.step()
    one.finish()


def restarted(name: str, rank: int) -> list[list[float]]:
    """Parameters: after a restart and an epoch, and of a run that begins there."""
    options = {"per_node": 2} if name == "hadpsgd" else {}
    state = {n: 0.5 * t + rank for n, t in Net().state_dict().items()}
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    ends = []
    with Session(model, optimizer, name, **options) as session:
        epoch(session, model, rank)
        model.load_state_dict(state)  # another one on each learner
        session.restart_from_model()
        ends.append(flat(model).tolist())
        epoch(session, model, rank)
        ends.append(flat(model).tolist())
    model.load_state_dict(state)
    with Session(model, optimizer, name, **options) as session:
        ends.append(flat(model).tolist())
        epoch(session, model, rank)
        ends.append(flat(model).tolist())
    return ends


def all_restarted(names: list[str]) -> dict[str, list[list[float]]]:
    return {name: restarted(name, dist.get_rank()) for name in names}


def test_a_restart_is_a_new_run() -> None:
    names = sorted(ALGORITHMS)
    first, second = launch(2, all_restarted, names)
    for name in names:
        for ends in (first[name], second[name]):
            assert ends[0] == ends[2] == first[name][0], name
            # the exchanges of adpsgd come when they come
            assert ends[1] == ends[3] or name == "adpsgd", name
