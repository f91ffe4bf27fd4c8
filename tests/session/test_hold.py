"""A session that was left has left nothing behind."""

import contextlib
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Adam

from espnet_distopt.core.memory import on_its_own
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session
from tests.processes import launch


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.lstm(x)[0])
        return y


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, session: Session | None
) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(5, 2, 3)).sum().backward()
        optimizer.step()
        if session is not None:
            session.step()


def fails(model: nn.Module, optimizer: Adam) -> None:
    with pytest.raises(OSError, match="disk"), Session(model, optimizer, "bmuf") as s:
        train(model, optimizer, s)
        raise OSError("disk full")


def ends(model: nn.Module, optimizer: Adam) -> None:
    with Session(model, optimizer, "bmuf", period=1) as session:
        train(model, optimizer, session)


def closes(model: nn.Module, optimizer: Adam) -> None:
    session = Session(model, optimizer, "bmuf", period=1)
    train(model, optimizer, session)
    session.close()
    with pytest.raises(InputError, match="step 3: the session was left"):
        session.step()


def never_begins(model: nn.Module, optimizer: Adam) -> None:
    train(model, optimizer, None)
    with pytest.raises(InputError, match="unknown option"):
        Session(model, optimizer, "bmuf", perid=1)


def saved(thing: object) -> int:
    file = io.BytesIO()
    torch.save(thing, file)
    return len(file.getvalue())


@pytest.mark.parametrize("use", [fails, ends, closes, never_begins])
def test_nothing_is_left_behind(use: Callable[[nn.Module, Adam], None]) -> None:
    model, other = Recurrent(), Recurrent()
    optimizer, plain = Adam(model.parameters()), Adam(other.parameters())
    use(model, optimizer)
    train(other, plain, None)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert saved(mine) == saved(theirs)
        assert mine.grad is not None and on_its_own(mine.grad)
        assert all(map(on_its_own, optimizer.state[mine].values()))
        assert not mine._post_accumulate_grad_hooks
    for module, twin in zip(model.modules(), other.modules(), strict=True):
        assert vars(module).keys() == vars(twin).keys()
        assert not module._load_state_dict_post_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks


def left(algorithm: str, fails: bool) -> list[bool]:
    """Whether session, learner and algorithm are there without a look for cycles."""
    model = Recurrent()
    optimizer = Adam(model.parameters())
    gc.collect()
    gc.disable()
    session = Session(model, optimizer, algorithm)
    parts = session, session.learner, session.algorithm
    references = [weakref.ref(each) for each in parts]
    del parts
    # The other learner may fail first.
    with contextlib.suppress(OSError, PeerLostError), session:
        train(model, optimizer, session)
        if fails:
            raise OSError("disk full")
    del session
    return [each() is not None for each in references]


@pytest.mark.parametrize("algorithm", ["adpsgd", "allreduce", "bmuf_adam"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_was_left_is_no_longer_in_memory(
    algorithm: str, fails: bool
) -> None:
    """It is as large as the model a few times over, and Python does not know that."""
    assert launch(2, left, algorithm, fails) == [[False] * 3] * 2


def test_a_parameter_alone_has_storage_of_its_own() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    model = nn.ParameterList([parameter])
    with Session(model, SGD(model.parameters(), lr=0.1), "local_sgd") as session:
        pass
    session.learner.params.fill_(1)
    assert parameter.tolist() == [0, 0, 0]


def one_after_the_other(second: str, steps: tuple[int, int]) -> list[Any]:
    """The gradient in a second session, and the model's consensus."""
    rank = dist.get_rank()
    model = nn.Linear(3, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "allreduce") as session:
        model(torch.full((1, 3), 1.0 + rank)).sum().backward()
        optimizer.step()
        session.step()
    with Session(model, optimizer, second) as session:
        for _ in range(steps[rank]):
            optimizer.zero_grad()
            model(torch.full((1, 3), 1.0 + rank)).sum().backward()
            optimizer.step()
            session.step()
        with session.consensus():
            consensus = model.weight.tolist()
    assert model.weight.grad is not None
    return [model.weight.grad.tolist(), consensus]


@pytest.mark.parametrize(
    ("second", "steps"), [("local_sgd", (3, 3)), ("adpsgd", (3, 9))]
)
def test_gradients_are_not_averaged_after_an_all_reduce_was_left(
    second: str, steps: tuple[int, int]
) -> None:
    first, other = launch(2, one_after_the_other, second, steps, timeout=30)
    assert first == [[[1.0] * 3], other[1]]
    assert other[0] == [[2.0] * 3]
