"""Moments that a user loads, schedules that change their decay, skipped updates."""

import copy
import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from espnet_distopt.algorithms.block.flat_moments import Moments, moment_decays
from espnet_distopt.core.effects import Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from tests.replicas import Replica, end, filter_of, run, several


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def descend(replica: Replica, seed: int, steps: int = 4) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        gradient = torch.randn(replica.learner.params.shape, generator=generator)
        yield from replica.step(gradient.tolist())


def replicas(make: Any, **options: Any) -> list[Replica]:
    options = {"period": 4, "momentum": 0.5, **options}
    return several("bmuf_adam", net, make, 2, **options)


def epoch(found: list[Replica], seed: int, steps: int = 4) -> None:
    run(*(descend(r, seed + r.learner.rank, steps) for r in found))


def trained(make: Any) -> dict[str, Any]:
    """The state of an optimizer that has made 50 steps."""
    replica = Replica.of("local_sgd", net(), make, period=100)
    run(descend(replica, 7, 50))
    return copy.deepcopy(replica.optimizer.state_dict())


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize(
    "make", [partial(Adam, lr=0.01), partial(SGD, lr=0.01, momentum=0.9)]
)
def test_loaded_moments_are_averaged_at_the_end_of_their_block(
    make: Any, delay: int
) -> None:
    """Learners may load unequal ones: no common start to extrapolate from."""
    state = trained(make)

    def begin(parameters: Any) -> Any:
        optimizer = make(parameters)
        optimizer.load_state_dict(copy.deepcopy(state))
        return optimizer

    averaged = replicas(begin, delay=delay, moments="average")
    found = replicas(make, delay=delay)
    for replica in found:
        replica.optimizer.load_state_dict(copy.deepcopy(state))
    for learners in (averaged, found):
        epoch(learners, 1)
        run(*(r.algorithm.finish(r.learner) for r in learners))
    for old, new in zip(averaged, found, strict=True):
        assert torch.equal(old.learner.params, new.learner.params)
        for a, b in zip(old.learner.parameters, new.learner.parameters, strict=True):
            for key, value in old.optimizer.state[a].items():
                assert torch.equal(
                    *map(torch.as_tensor, (new.optimizer.state[b][key], value))
                )


def test_moments_that_are_loaded_beside_a_late_average_stay() -> None:
    make = partial(Adam, lr=0.01)
    state = trained(make)
    found = replicas(make, delay=2)
    epoch(found, 1, 5)  # an average is under way
    for replica in found:
        replica.optimizer.load_state_dict(copy.deepcopy(state))
    alone = net()
    other = make(alone.parameters())
    other.load_state_dict(copy.deepcopy(state))
    epoch(found, 2, 1)  # and is taken
    for replica in found:
        parameter = replica.learner.parameters[0]
        steps = replica.optimizer.state[parameter]["step"]
        assert steps.item() == 51
        moment = replica.optimizer.state[parameter]["exp_avg_sq"]
        loaded = other.state[next(alone.parameters())]["exp_avg_sq"]
        generator = torch.Generator().manual_seed(2 + replica.learner.rank)
        slot, like = replica.learner.slots[0], replica.learner.params
        gradient = slot.of(torch.randn(like.shape, generator=generator))
        torch.testing.assert_close(moment, 0.999 * loaded + 0.001 * gradient.square())


@pytest.mark.parametrize("delay", [0, 2])
def test_the_decays_in_force_when_a_block_ends_count(delay: int) -> None:
    early = replicas(partial(Adam, lr=0.01, betas=(0.5, 0.9)), delay=delay)
    late = replicas(partial(Adam, lr=0.01), delay=delay)
    for replica in late:
        replica.optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    for found in (early, late):
        epoch(found, 1, 12)
    assert torch.equal(early[0].learner.params, late[0].learner.params)


def test_momentum_may_cycle_through_zero() -> None:
    found = replicas(partial(SGD, lr=0.01, momentum=0.0))
    for momentum in (0.0, 0.9, 0.0, 0.5):
        for replica in found:
            replica.optimizer.param_groups[0]["momentum"] = momentum
        epoch(found, 1)
    assert torch.equal(found[0].learner.params, found[1].learner.params)
    moments = [
        r.optimizer.state[r.learner.parameters[0]]["momentum_buffer"] for r in found
    ]
    assert torch.equal(*moments)


def test_momentum_may_begin_beside_a_late_average() -> None:
    found = replicas(partial(SGD, lr=0.01, momentum=0.0), delay=2)
    epoch(found, 1, 5)  # The average that has begun has no momentum in it.
    for replica in found:
        replica.optimizer.param_groups[0]["momentum"] = 0.9
    epoch(found, 2, 7)
    end(found)
    first, second = found
    assert torch.equal(first.learner.params, second.learner.params)
    buffers = [
        r.optimizer.state[r.learner.parameters[0]]["momentum_buffer"] for r in found
    ]
    assert torch.equal(*buffers) and buffers[0].any()


class Layers(nn.Module):
    """Parameters some of which have no gradient in a step, as layer drop leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in range(12))


def drop_layers(replica: Replica, steps: int) -> Program:
    rank = replica.learner.rank
    generator = torch.Generator().manual_seed(rank)
    source = random.Random(rank)
    for _ in range(steps):
        for parameter in replica.learner.parameters:
            gradient = torch.randn(2, generator=generator)
            parameter.grad = None if source.random() < 0.1 else gradient
        replica.optimizer.step()
        replica.learner.steps += 1
        yield from replica.algorithm.after_step(replica.learner)
    yield from replica.algorithm.finish(replica.learner)


@pytest.mark.parametrize("start", [0.0, 2.0**21])
@pytest.mark.parametrize("delay", [0, 2])
def test_learners_with_unequal_updates_have_equal_moments_after_an_epoch(
    delay: int, start: float
) -> None:
    """A difference of the last bit would grow by kappa in each block."""
    make = partial(Adam, lr=1e-3)
    found = several("bmuf_adam", Layers, make, 4, period=8, delay=delay)
    for replica in found if start else ():
        for parameter in replica.learner.parameters:
            moments = {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.ones(2)}
            replica.optimizer.state[parameter] = {
                "step": torch.tensor(start),
                **moments,
            }
    for _ in range(3):
        run(*(drop_layers(r, 64) for r in found))
        for name in ("step", "exp_avg", "exp_avg_sq"):
            first, *others = [
                torch.stack([r.optimizer.state[p][name] for p in r.learner.parameters])
                for r in found
            ]
            assert all(torch.equal(first, other) for other in others), name
            assert name != "step" or (first >= max(start, 50)).all()


@pytest.mark.parametrize(
    ("then", "now"),
    [("local", "average"), ("average", "local"), ("reset", "extrapolate")],
)
def test_other_moments_are_refused_when_a_run_is_resumed(then: str, now: str) -> None:
    make = partial(Adam, lr=0.01)
    found = replicas(make, moments=then)
    epoch(found, 1, 8)
    end(found)
    state = found[0].algorithm.state_dict()
    with pytest.raises(InputError, match="saved with other `moments`"):
        replicas(make, moments=now)[0].algorithm.load_state_dict(state)


def test_a_fused_update_that_was_skipped_is_none() -> None:
    model = net()
    optimizer = Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    session = Session(model, optimizer, "bmuf_adam", period=4, momentum=0.5, warmup=0)
    for step in range(8):
        optimizer.zero_grad()
        x = torch.full((2, 3), float("inf") if step == 3 else 1.0)
        scaler.scale(model[0](x).sum()).backward()  # type: ignore[index, operator]
        scaler.step(optimizer)
        scaler.update()
        session.step()
    assert session.learner.updates == 7
    algorithm: Any = session.algorithm
    assert filter_of(algorithm).rho == 0.5 * 3 + 4


def test_a_sparse_momentum_becomes_a_dense_one() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    plain = nn.Embedding(4, 2)
    plain.load_state_dict(model.state_dict())
    other = SGD(plain.parameters(), lr=0.1, momentum=0.5)
    session = Session(model, optimizer, "bmuf", period=2, momentum=0.0)
    for row in (0, 1, 2, 3, 1):
        for net_, owner in ((model, optimizer), (plain, other)):
            owner.zero_grad()
            net_(torch.tensor([row])).sum().backward()
            owner.step()
        session.step()
    torch.testing.assert_close(model.weight, plain.weight)


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("which", ["all", "one"])
def test_a_state_that_is_cleared_counts_as_loaded(which: str, delay: int) -> None:
    """A user clears it for a layer that begins anew, and no hook tells of that."""
    found = replicas(partial(Adam, lr=0.01), delay=delay)
    epoch(found, 1, steps=40)
    for each in found:
        state = each.optimizer.state
        if which == "all":
            state.clear()
        else:
            state[each.learner.parameters[0]] = {}
    for seed in range(2, 6):
        epoch(found, seed, steps=4)
        for each in found:
            states = each.optimizer.state.values()
            assert all(float(state["step"]) >= 0 for state in states)
            assert all((state["exp_avg_sq"] >= 0).all() for state in states)
            assert each.learner.params.isfinite().all()
    end(found)
    first, second = (each.learner.params for each in found)
    assert torch.equal(first, second)


# The moments as flat buffers


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def groups(model: Any) -> list[dict[str, Any]]:
    return [
        {"params": model[0].parameters(), "betas": (0.8, 0.9), "momentum": 0.5},
        {"params": model[1].parameters(), "betas": (0.7, 0.6), "momentum": 0.0},
    ]


def test_decays_are_those_of_each_group() -> None:
    adam = Adam(groups(layers()))
    assert moment_decays(adam) == {"exp_avg": [0.8, 0.7], "exp_avg_sq": [0.9, 0.6]}
    assert moment_decays(SGD(groups(layers()), lr=1.0)) == {
        "momentum_buffer": [0.5, 0.0]
    }
    assert moment_decays(SGD(layers().parameters(), lr=1.0)) == {}


def test_parameters_without_state_get_zeros() -> None:
    model = layers()
    learner = Learner(model, Adam(model.parameters()))
    moments = Moments(learner)
    moments.adopt()
    moments.flat["exp_avg"].fill_(5)
    learner.optimizer.state.clear()
    moments.adopt()
    assert (moments.flat["exp_avg"] == 0).all()
    assert moments.steps() == [0.0] * 4


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
