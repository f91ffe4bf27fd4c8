"""Parameters that share memory are refused: a flat buffer would untie them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD

from espnet_distopt.core.learner import Learner
from espnet_distopt.core.memory import distinct, overlaps_itself, share_memory
from espnet_distopt.errors import InputError


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def same_data(model: nn.Sequential) -> None:
    model[1].weight.data = model[0].weight.data


def a_view(model: nn.Sequential) -> None:
    model[1].bias.data = model[0].weight.data[1]


def a_frozen_view(model: nn.Sequential) -> None:
    a_view(model)
    model[1].bias.requires_grad_(False)


def a_buffer(model: nn.Sequential) -> None:
    model.register_buffer("bias", model[0].weight.data[1])


@pytest.mark.parametrize("tie", [same_data, a_view, a_frozen_view, a_buffer])
def test_shared_memory_is_refused(tie: Callable[[nn.Sequential], None]) -> None:
    model = pair()
    tie(model)
    with pytest.raises(InputError, match=r"'.*' and '.*' share memory.*b.weight = a"):
        Learner(model, SGD(model.parameters(), lr=0.1))


def test_an_expanded_parameter_is_refused() -> None:
    model = pair()
    model[0].bias.data = torch.zeros(1).expand(3)
    with pytest.raises(
        InputError, match=r"elements of parameter '0\.bias' share memory"
    ):
        Learner(model, SGD(model.parameters(), lr=0.1))


def test_tied_modules_stay_tied() -> None:
    model = pair()
    model[1].weight = model[0].weight
    learner = Learner(model, SGD(model.parameters(), lr=0.1))
    learner.params.fill_(2)
    assert model[1].weight is model[0].weight
    assert (model[1].weight == 2).all() and learner.params.numel() == 15


def test_parameters_that_interleave_share_nothing() -> None:
    model = pair()
    whole = torch.arange(6.0)
    model[0].bias.data, model[1].bias.data = whole[::2], whole[1::2]
    Learner(model, SGD(model.parameters(), lr=0.1))
    assert model[0].bias.tolist() == [0, 2, 4]
    assert model[1].bias.tolist() == [1, 3, 5]


def test_a_parameter_twice_in_an_optimizer_is_refused() -> None:
    model = pair()
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = SGD([*model.parameters(), model[0].bias], lr=0.1)
    with pytest.raises(InputError, match=r"parameter '0\.bias' more than once"):
        Learner(model, optimizer)


@pytest.mark.parametrize(
    ("size", "stride", "overlaps"),
    [
        ((2, 3), (3, 1), False),
        ((3, 2), (1, 3), False),
        ((2, 3), (0, 1), True),
        ((1, 3), (0, 1), False),
        ((3, 3), (1, 1), True),
        ((2, 2), (2, 3), False),  # interleaves, and meets nowhere
        ((0, 3), (0, 0), False),
        ((), (), False),
    ],
)
def test_overlaps(
    size: tuple[int, ...], stride: tuple[int, ...], overlaps: bool
) -> None:
    tensor = torch.arange(20).as_strided(size, stride)
    assert overlaps_itself(tensor) == overlaps
    assert distinct(tensor).unique().numel() == tensor.unique().numel()


def test_names_of_what_shares_memory() -> None:
    whole = torch.zeros(10)
    these = {"a": whole[:4], "b": whole[4:6]}
    others = {"c": whole[5:], "d": whole[6:], "e": whole[3:4].view(torch.int8)}
    assert list(share_memory(these, others)) == [("a", "e"), ("b", "c")]
