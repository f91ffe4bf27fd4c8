"""What a user changes while a session is open: noticed, or right."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from tests.processes import launch

LOADED = r"session\.restart_from_model\(\)"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        self.extra = nn.Linear(4, 1).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(x))
        y: torch.Tensor = self.head(hidden) + self.extra(hidden)
        return y


class Open:
    """A session of one learner, and a step of its training."""

    def __init__(self, name: str = "local_sgd", **options: Any) -> None:
        self.model = Net()
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.session = Session(self.model, self.optimizer, name, **options)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 3)).sum().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.session.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_parameter_that_is_unfrozen_is_named() -> None:
    one = Open()
    one.step()
    one.model.extra.requires_grad_(True)
    with pytest.raises(InputError, match=r"learner 0, step 1: .*'extra\.weight'"):
        one.step()


def test_a_parameter_that_is_added_is_named() -> None:
    model = Net()
    optimizer = SGD(model.body.parameters(), lr=0.1)
    session = Session(model, optimizer, "allreduce")
    optimizer.add_param_group({"params": list(model.extra.parameters())})
    session.step()  # nothing in it is trained
    optimizer.add_param_group({"params": list(model.head.parameters())})
    with pytest.raises(InputError, match=r"step 1: parameter 'head\.weight' was unfro"):
        session.step()


def test_a_frozen_group_may_be_added_where_rates_are_followed() -> None:
    one = Open("slowmo", period=1)
    one.step()
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    one.optimizer.add_param_group({"params": [frozen]})
    one.step()
    assert one.session.learner.updates == 2


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_parameter_that_is_frozen_is_named_unless_nothing_remembers_it(
    name: str,
) -> None:
    one = Open(name)
    one.step()
    one.model.head.weight.requires_grad_(False)
    before = one.model.head.weight.clone()
    if name == "allreduce":
        one.step()
        assert torch.equal(one.model.head.weight, before)
        one.model.head.weight.requires_grad_(True)
        one.step()
        assert not torch.equal(one.model.head.weight, before)
        return
    with pytest.raises(InputError, match=r"step 1: parameter 'head\.weight' was froz"):
        one.step()


def test_freezing_between_two_steps_is_nobodys_business() -> None:
    one = Open()
    one.model.requires_grad_(False)  # as for the other network of a GAN
    for module in (one.model.body, one.model.head):
        module.requires_grad_(True)
    one.step()


# Loading


def load_all(model: Net) -> None:
    model.load_state_dict(model.state_dict())


def load_part(model: Net) -> None:
    model.head.load_state_dict(model.head.state_dict())


def load_around(model: Net) -> None:
    whole = nn.ModuleList([model])
    whole.load_state_dict(whole.state_dict())


@pytest.mark.parametrize("load", [load_all, load_part, load_around])
@pytest.mark.parametrize(
    "go_on",
    [
        lambda session: session.begin_batch(1),
        lambda session: session.step(),
        lambda session: session.finish(),
        lambda session: session.consensus().__enter__(),
        lambda session: session.enter_consensus(),
    ],
)
def test_a_state_loaded_into_the_model_is_noticed(
    load: Callable[[Net], None], go_on: Callable[[Session], Any]
) -> None:
    one = Open("bmuf")
    one.step()
    load(one.model)
    with pytest.raises(InputError, match=LOADED):
        go_on(one.session)


def test_what_is_not_trained_may_be_loaded() -> None:
    one = Open()
    one.step()
    one.model.extra.load_state_dict(one.model.head.state_dict())
    one.step()


@pytest.mark.parametrize(
    "twin_of", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_a_copy_of_the_model_may_be_loaded(twin_of: Callable[[Net], Net]) -> None:
    one = Open()
    one.step()
    twin = twin_of(one.model)
    load_all(twin)
    load_part(twin)
    one.step()
    assert not torch.equal(flat(twin), flat(one.model))


def test_a_session_that_is_resumed_knows_what_was_loaded() -> None:
    one, again = Open("bmuf"), Open("bmuf")
    one.step()
    with one.session.consensus():
        state, model = one.session.state_dict(), one.model.state_dict()
        again.model.load_state_dict(model)
    again.session.load_state_dict(state)
    one.step()
    again.step()
    assert torch.equal(flat(one.model), flat(again.model))


# Updates


def test_updates_that_bypass_the_optimizer_are_counted() -> None:
    one = Open("bmuf", period=100)
    learner = one.session.learner

    def by_hand() -> None:
        with torch.no_grad():
            for parameter in one.model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad

    def by_data() -> None:
        for parameter in one.model.parameters():
            if parameter.grad is not None:
                parameter.data -= 0.1 * parameter.grad

    for count, update in enumerate([by_hand, by_data, one.optimizer.step], 1):
        one.backward()
        update()
        one.session.step()
        assert learner.updates == count
        one.backward()
        one.session.step()  # skipped
        assert learner.updates == count


def test_updates_to_what_is_no_number_are_none() -> None:
    one = Open()
    with torch.no_grad():
        one.model.head.weight.fill_(float("nan"))
    for _ in range(3):
        one.session.step()
    assert one.session.learner.updates == 1


@pytest.mark.parametrize("name", ["bmuf", "adpsgd", "dpsgd", "slowmo", "adasum"])
def test_what_an_algorithm_writes_is_no_update(name: str) -> None:
    one = Open(name)
    for _ in range(4):
        one.step()
    for _ in range(2):
        with one.session.consensus():
            pass
        one.session.load_state_dict(one.session.state_dict())
        one.session.step()
    assert one.session.learner.updates == 4


def updated_by_hand() -> list[float]:
    """A run whose optimizer never steps: a user writes to the parameters."""
    rank = dist.get_rank()
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "bmuf", period=2, momentum=0.0) as session:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.full((2, 3), 0.3 + rank + step)).square().mean().backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.data -= 0.1 * parameter.grad
            session.step()
        session.finish()
    values: list[float] = flat(model).tolist()
    return values


def test_learners_that_update_by_hand_meet() -> None:
    first, second = launch(2, updated_by_hand)
    assert first == second != flat(Net()).tolist()


class OwnStep(SGD):
    """Has a step of its own, so that torch wraps both this one and SGD's in hooks."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_step_that_calls_the_step_of_its_base_is_one_update() -> None:
    SGD([nn.Parameter(torch.ones(1))])  # torch wraps a class when one is first made
    one = Open("bmuf_adam", period=100)
    one.session.close()
    one.optimizer = OwnStep(one.model.parameters(), lr=0.1)
    one.session = Session(one.model, one.optimizer, "bmuf_adam", period=100)
    for _ in range(3):
        one.step()
    assert one.session.learner.updates == 3


class TwoOptimizers(Open):
    """The body is trained by the session's optimizer, and the head by another one."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = SGD(self.model.body.parameters(), lr=0.1)
        self.other = SGD(self.model.head.parameters(), lr=0.1)
        self.session = Session(self.model, self.optimizer, "allreduce")

    def step_both(self) -> None:
        self.model.zero_grad()
        self.backward()
        self.optimizer.step()
        self.other.step()
        self.session.step()


def test_what_another_optimizer_trains_is_named() -> None:
    both = TwoOptimizers()
    both.step()  # What nobody updates may have a gradient.
    with pytest.raises(InputError, match=r"'head\.weight' is updated, but not by"):
        both.step_both()


def test_another_optimizer_may_have_a_session_of_its_own() -> None:
    both = TwoOptimizers()
    with Session(both.model.head, both.other, "allreduce") as second:
        for _ in range(2):
            both.step_both()
            second.step()
    with pytest.raises(InputError, match=r"'head\.weight' is updated"):
        both.step_both()


def test_an_average_of_the_parameters_may_change() -> None:
    one = TwoOptimizers()
    for _ in range(2):
        with torch.no_grad():
            one.model.head.weight.lerp_(torch.ones(1, 4), 0.1)  # without a gradient
        one.optimizer.step()
        one.session.step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_that_moments_do_not_follow_are_told_once(
    momentum: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=momentum)
    with Session(model, optimizer, "local_sgd") as session:
        optimizer = SGD(model.parameters(), lr=0.1, momentum=momentum)  # made anew
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            session.step()
    said = [line for line in caplog.messages if "not by a step of" in line]
    assert len(said) == (momentum > 0)
    assert all("begin a new session, or fit, with it" in line for line in said)


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "bmuf"])
def test_a_state_is_loaded_between_epochs(name: str) -> None:
    """Within one, what is under way between learners would be added to it."""
    one = Open(name)
    state = one.session.state_dict()
    one.step()
    with pytest.raises(InputError, match=r"step 1: load_state_dict is for between"):
        one.session.load_state_dict(state)
    with (
        one.session.consensus(),
        pytest.raises(InputError, match="the model holds the consensus"),
    ):
        one.session.load_state_dict(state)
    one.session.load_state_dict(state)
    one.session.close()
    with pytest.raises(InputError, match="the session was left"):
        one.session.load_state_dict(state)


def test_half_precision_is_not_weighed_by_samples() -> None:
    model = nn.Linear(2, 1).half()
    session = Session(model, SGD(model.parameters(), lr=0.1), "allreduce")
    session.begin_batch(1)
    with pytest.raises(InputError, match=r"float16 cannot be weighed by 80000 samples"):
        session.begin_batch(80_000)
