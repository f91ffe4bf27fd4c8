"""The optimizer's moments as flat buffers."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from espnet_distopt.algorithms.block.moments import Moments, moment_decays
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def train(model: nn.Module, optimizer: Optimizer, steps: int = 1) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()


def groups(model: Any) -> list[dict[str, Any]]:
    return [
        {"params": model[0].parameters(), "betas": (0.8, 0.9), "momentum": 0.5},
        {"params": model[1].parameters(), "betas": (0.7, 0.6), "momentum": 0.0},
    ]


def test_decays_are_those_of_each_group() -> None:
    adam = Adam(groups(net()))
    assert moment_decays(adam) == {"exp_avg": [0.8, 0.7], "exp_avg_sq": [0.9, 0.6]}
    assert moment_decays(SGD(groups(net()), lr=1.0)) == {"momentum_buffer": [0.5, 0.0]}
    assert moment_decays(SGD(net().parameters(), lr=1.0)) == {}


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (Adagrad, {}, "moments of Adagrad are not known .* use moments: local"),
        (RMSprop, {}, "moments of RMSprop"),
        (AdamW, {"amsgrad": True}, "use amsgrad: false"),
    ],
)
def test_other_optimizers_are_refused(
    kind: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        moment_decays(kind(net().parameters(), **options))


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("before", [0, 2])
def test_adopted_state_changes_no_bit(kind: Any, foreach: bool, before: int) -> None:
    model, plain = net(), net()
    optimizer = kind(model.parameters(), lr=0.1, foreach=foreach)
    other = kind(plain.parameters(), lr=0.1, foreach=foreach)
    train(model, optimizer, before)
    train(plain, other, before + 3)
    moments = Moments(Learner(model, optimizer))
    moments.adopt()
    for step in range(before, before + 3):
        optimizer.zero_grad()
        model(torch.full((1, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()
        moments.adopt()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for key, value in other.state[theirs].items():
            assert torch.equal(optimizer.state[mine][key], value)
    assert moments.steps() == [before + 3.0] * 4


def test_state_is_a_view_of_the_flat_buffer() -> None:
    model = net()
    learner = Learner(model, Adam(model.parameters()))
    moments = Moments(learner)
    train(model, learner.optimizer)
    moments.adopt()
    moments.flat["exp_avg"].copy_(torch.arange(26.0))
    state = [
        learner.optimizer.state[p]["exp_avg"].flatten() for p in model.parameters()
    ]
    assert torch.cat(state).tolist() == list(range(26))


def test_loaded_state_is_adopted_again() -> None:
    model = net()
    learner = Learner(model, Adam(model.parameters()))
    moments = Moments(learner)
    train(model, learner.optimizer, 2)
    moments.adopt()
    state = learner.optimizer.state_dict()
    kept = moments.flat["exp_avg_sq"].clone()
    learner.optimizer.load_state_dict(state)
    moments.flat["exp_avg_sq"].zero_()
    learner.optimizer.load_state_dict(
        {
            **state,
            "state": {
                i: {**s, "exp_avg_sq": torch.ones_like(s["exp_avg_sq"])}
                for i, s in state["state"].items()
            },
        }
    )
    moments.adopt()
    assert (moments.flat["exp_avg_sq"] == 1).all()
    assert kept.abs().sum() > 0


def test_parameters_without_state_get_zeros() -> None:
    model = net()
    learner = Learner(model, Adam(model.parameters()))
    moments = Moments(learner)
    moments.adopt()
    moments.flat["exp_avg"].fill_(5)
    learner.optimizer.state.clear()
    moments.adopt()
    assert (moments.flat["exp_avg"] == 0).all()
    assert moments.steps() == [0.0] * 4


def test_step_counts_may_be_fractions() -> None:
    model = net()
    learner = Learner(model, Adam(model.parameters()))
    moments = Moments(learner)
    moments.adopt()
    moments.set_steps([1.5, 2.25, 0.0, 3.0])
    assert moments.steps() == [1.5, 2.25, 0.0, 3.0]
    train(model, learner.optimizer)
    assert moments.steps() == [2.5, 3.25, 1.0, 4.0]


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize(
    "how", [{"foreach": True}, {"foreach": False}, {"fused": True}]
)
def test_adam_corrects_bias_by_fractions_of_steps(
    kind: Any, how: dict[str, bool]
) -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = kind([parameter], lr=0.1, weight_decay=0.0, eps=0.0, **how)
    m, v, step = (torch.tensor(x).double() for x in ([0.2, 0.3], [0.5, 0.1], 6.3))
    state = {"exp_avg": m.clone(), "exp_avg_sq": v.clone(), "step": step.float()}
    optimizer.state[parameter] = state
    parameter.grad = torch.tensor([3.0, 1.0], dtype=torch.float64)
    optimizer.step()
    m, v = 0.9 * m + 0.1 * parameter.grad, 0.999 * v + 0.001 * parameter.grad**2
    corrected = m / (1 - 0.9**7.3) / (v / (1 - 0.999**7.3)).sqrt()
    expected = torch.tensor([1.0, -2.0], dtype=torch.float64) - 0.1 * corrected
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-7, atol=0)


def test_runs_merge_equal_neighbours_within_a_group() -> None:
    model = net()
    moments = Moments(Learner(model, Adam(groups(model))))
    first, second = 12 + 4, 26
    assert moments.runs([8.0] * 4) == [
        (slice(0, first), 0, 8.0),
        (slice(first, second), 1, 8.0),
    ]
    assert moments.runs([8.0, 7.0, 7.0, 7.0]) == [
        (slice(0, 12), 0, 8.0),
        (slice(12, first), 0, 7.0),
        (slice(first, second), 1, 7.0),
    ]
