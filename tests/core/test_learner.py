"""The flat buffer: every element exactly once, whatever the optimizer does."""

import copy
import warnings
from typing import Any
from weakref import WeakSet

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam

from espnet_distopt.core import recurrent
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
layouts = st.lists(
    st.tuples(shapes, st.booleans(), st.integers(0, 2)), min_size=1, max_size=8
).filter(lambda rows: any(trainable for _, trainable, _ in rows))


def packed(rows: list[tuple[tuple[int, ...], bool, int]]) -> tuple[Learner, nn.Module]:
    """Parameters by (shape, trainable, group), numbered through from 0."""
    model = nn.Module()
    groups: list[list[nn.Parameter]] = [[], [], []]
    count = 0
    for index, (shape, trainable, group) in enumerate(rows):
        value = torch.arange(count, count + torch.Size(shape).numel()).float()
        parameter = nn.Parameter(value.reshape(shape), requires_grad=trainable)
        model.register_parameter(f"p{index}", parameter)
        groups[group].append(parameter)
        count += parameter.numel()
    optimizer = SGD([{"params": group} for group in groups], lr=1.0)
    return Learner(model, optimizer), model


@given(layouts)
@settings(max_examples=60)
def test_packing_touches_each_element_exactly_once(
    rows: list[tuple[tuple[int, ...], bool, int]],
) -> None:
    learner, model = packed(rows)
    total = sum(p.numel() for p in model.parameters())
    trainable = [p for p in model.parameters() if p.requires_grad]
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert before.tolist() == list(range(total))  # values kept
    assert sorted(learner.params.tolist()) == sorted(
        x for p in trainable for x in p.detach().flatten().tolist()
    )
    learner.params.add_(1000)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    moved = torch.cat(
        [torch.full((p.numel(),), p.requires_grad) for p in model.parameters()]
    )
    assert torch.equal(after, before + 1000 * moved)
    assert [s.group for s in learner.slots] == sorted(s.group for s in learner.slots)
    learner.check_storage()


def test_a_parameter_without_elements_is_allowed() -> None:
    learner, _ = packed([((2,), True, 0), ((0, 3), True, 0), ((1,), True, 0)])
    learner.check_storage()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.parametrize("foreach", [False, True])
def test_views_survive_steps_and_zero_grad(foreach: bool) -> None:
    model, plain = net(), net()
    optimizer = Adam(model.parameters(), lr=0.1, foreach=foreach)
    other = Adam(plain.parameters(), lr=0.1, foreach=foreach)
    learner = Learner(model, optimizer)
    for _ in range(3):
        for net_, owner in ((model, optimizer), (plain, other)):
            owner.zero_grad()
            net_(torch.ones(2, 3)).sum().backward()
            owner.step()
        learner.check_storage()
    flat = nn.utils.parameters_to_vector(plain.parameters())
    assert torch.equal(learner.params, flat.detach())
    assert learner.updates == 3


def test_loading_a_checkpoint_keeps_the_buffer() -> None:
    model = net()
    learner = Learner(model, SGD(model.parameters(), lr=0.1))
    state = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    model.load_state_dict(state)
    assert (learner.params == 1).all()
    learner.check_storage()


def _cast(model: nn.Module) -> None:
    model.double()


def _assign(model: nn.Module) -> None:
    model[2].weight.data = torch.zeros(1, 4)  # type: ignore[index, union-attr]


@pytest.mark.parametrize("move", [_cast, _assign])
def test_moved_parameters_are_noticed(move: Any) -> None:
    model = net()
    learner = Learner(model, SGD(model.parameters(), lr=0.1), rank=3)
    move(model)
    with pytest.raises(InputError, match=r"learner 3, step 0: parameter '.*' of shape"):
        learner.check_storage()


def test_recurrent_layers_stay_in_the_buffer() -> None:
    model = nn.LSTM(2, 3, bidirectional=True)
    learner = Learner(model, SGD(model.parameters(), lr=0.1))
    model.flatten_parameters()
    learner.check_storage()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(torch.ones(4, 1, 2))[0], model(torch.ones(4, 1, 2))[0])


def test_mixed_types_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    words = "one dtype and device; found: torch.float16 on cpu, torch.float32 on cpu"
    with pytest.raises(InputError, match=words):
        Learner(model, SGD(model.parameters(), lr=0.1))


def test_complex_parameters_are_refused() -> None:
    model = nn.Linear(2, 2).to(torch.complex64)
    with pytest.raises(InputError, match=r"'weight' is complex.*view_as_real"):
        Learner(model, SGD(model.parameters(), lr=0.1))


def test_nothing_to_train_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(InputError, match="found: no trainable parameter"):
        Learner(model, SGD(model.parameters(), lr=0.1))


def test_state_round_trip() -> None:
    model = net()
    learner = Learner(model, SGD(model.parameters(), lr=0.1))
    learner.steps, learner.updates = 7, 5
    state = learner.state_dict()
    kept = state["params"].clone()
    learner.params.zero_()
    assert torch.equal(state["params"], kept)  # a copy
    fresh = Learner(net(), SGD(net().parameters(), lr=0.1))
    fresh.load_state_dict(state)
    assert torch.equal(fresh.params, kept)
    assert (fresh.steps, fresh.updates) == (7, 5)
    fresh.check_storage()


def test_state_of_another_model_is_refused() -> None:
    model = nn.Linear(2, 2)
    state = Learner(model, SGD(model.parameters(), lr=0.1)).state_dict()
    other = net()
    with pytest.raises(InputError, match=r"saved learner has 6 parameters.* has 21"):
        Learner(other, SGD(other.parameters(), lr=0.1)).load_state_dict(state)


class Watched:
    """A model whose backward passes are counted."""

    def __init__(self) -> None:
        self.model = net()
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.learner = Learner(self.model, self.optimizer)
        self.passes = 0
        self.learner.watch_backward(self.count)

    def count(self) -> None:
        self.passes += 1

    def loss(self, x: float = 1.0) -> Tensor:
        y: Tensor = self.model(torch.full((2, 3), x)).sum()
        return y


def test_gradients_gather_once_a_backward_pass() -> None:
    watched, plain = Watched(), net()
    for x in (1.0, 2.0):
        watched.loss(x).backward()
        plain(torch.full((2, 3), x)).sum().backward()
        expected = torch.cat([p.grad.flatten() for p in plain.parameters()])  # type: ignore[union-attr]
        assert torch.equal(watched.learner.grads, expected)  # type: ignore[arg-type]
    assert watched.passes == 2
    assert all(watched.learner.used)


def test_an_algorithm_has_the_room_before_the_gradients_that_it_asks_for() -> None:
    model = net()
    learner = Learner(model, SGD(model.parameters(), lr=0.1))
    learner.reserve(3)
    learner.watch_backward(lambda: None)
    learner.gradient_buffer[:3] = torch.tensor([1.0, 2.0, 3.0])
    model(torch.ones(2, 3)).sum().backward()
    assert learner.grads is not None
    assert learner.gradient_buffer.numel() == learner.params.numel() + 3
    assert learner.gradient_buffer[:3].tolist() == [1, 2, 3]
    assert torch.equal(learner.gradient_buffer[3:], learner.grads)
    assert learner.grads.abs().sum() > 0


def test_what_is_written_to_grads_is_what_the_optimizer_sees() -> None:
    watched = Watched()
    before = watched.learner.params.clone()
    watched.loss().backward()
    watched.learner.grads.fill_(10)  # type: ignore[union-attr]
    watched.learner.use_gradients(watched.learner.used)
    watched.optimizer.step()
    torch.testing.assert_close(watched.learner.params, before - 1)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_unused_parameter_has_zeros_and_no_stale_values(set_to_none: bool) -> None:
    watched = Watched()
    watched.loss().backward()
    watched.optimizer.zero_grad(set_to_none=set_to_none)
    watched.model[0](torch.ones(2, 3)).sum().backward()  # type: ignore[index, operator]
    # The optimizer treats a gradient of zeros otherwise than none.
    assert watched.learner.used == [True, True, not set_to_none, not set_to_none]
    slot = watched.learner.slots[2]
    assert (slot.of(watched.learner.grads) == 0).all()  # type: ignore[arg-type]


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise MemoryError("out of memory")


def test_a_failed_backward_pass_does_not_stop_the_watching() -> None:
    watched = Watched()
    first, last = watched.model[0], watched.model[2]  # type: ignore[index]
    with pytest.raises(MemoryError):
        last(Failing.apply(first(torch.ones(2, 3)))).sum().backward()  # type: ignore[operator]
    watched.loss().backward()
    assert watched.passes == 1


def test_warnings_are_filtered_only_while_a_learner_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch advises on a GPU to call what does nothing while a learner lives."""
    # The learners of earlier tests, which nobody has released, may live still.
    monkeypatch.setattr(recurrent, "_stopped", WeakSet())
    before = list(warnings.filters)
    models = [nn.LSTM(2, 3), nn.GRU(2, 3), nn.Linear(2, 3)]
    learners = [Learner(m, SGD(m.parameters(), lr=0.1)) for m in models]
    while learners:
        with warnings.catch_warnings(record=True) as said:
            warnings.warn("RNN module weights are not part of single ...", stacklevel=1)
        assert bool(said) is (len(learners) == 1)
        learners.pop(0).release()
    assert warnings.filters == before
