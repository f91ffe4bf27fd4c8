"""BMUF-Adam: moments and step counts.

The vectors are BA1 to BA6 of docs/algorithms/block.md; R3 is a rule of
docs/algorithms/README.md.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms.block.moments import extrapolation_gain
from espnet_distopt.simulation import VirtualLearner
from tests.replicas import Point, Replica, end, filter_of, run, several
from tests.virtual import started

ADAM = partial(Adam, lr=0.1, betas=(0.9, 0.99), eps=0.0)


def points(
    size: int, make: Any = ADAM, name: str = "bmuf_adam", **options: Any
) -> list[Replica]:
    return several(name, lambda: Point([0.0]), make, size, **options)


def moments(replica: Replica) -> tuple[float, float, float]:
    """m, v and the step count of a model that is one number."""
    state = replica.optimizer.state[replica.learner.parameters[0]]
    return tuple(state[k].item() for k in ("exp_avg", "exp_avg_sq", "step"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("k", "first", "second", "carried"),
    [
        (7, 0.39431632708162598, 0.86845824573805017, 0.6182948981244878),
        (13.125, 0.56621819462844428, 1.6233858476719433, 0.6698654583885333),
        (18.484375, 0.64802417155501994, 2.2801631721555893, 0.6944072514665061),
    ],
)
def test_ba1_gain(k: float, first: float, second: float, carried: float) -> None:
    assert extrapolation_gain(0.9, 8, k) == pytest.approx(first, rel=1e-14)
    assert extrapolation_gain(0.999, 8, k) == pytest.approx(second, rel=1e-14)
    assert 0.5 + extrapolation_gain(0.9, 8, k) * (0.5 - 0.2) == pytest.approx(
        carried, rel=1e-14
    )


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999, 0.999999, 1 - 1e-12])
def test_gain_has_no_cancellation(decay: float) -> None:
    """Whole k: the literal continuation b^tau (1 + b + ... ) / (1 + b + ...)."""
    powers = [decay**i for i in range(504)]
    expected = decay**8 * sum(powers) / sum(powers[:8])
    assert extrapolation_gain(decay, 8, 504) == pytest.approx(expected, rel=1e-12)


def test_gain_at_the_edges() -> None:
    assert extrapolation_gain(0.9, 8, 0) == 0
    assert extrapolation_gain(0.9, 0, 8) == 0
    assert extrapolation_gain(0.0, 8, 8) == 0
    assert extrapolation_gain(1 - 1e-15, 8, 56) == pytest.approx(7, rel=1e-6)
    assert extrapolation_gain(1.0, 8, 56) == 7


@settings(deadline=None)
@given(
    decay=st.floats(0.01, 0.9999),
    tau=st.floats(1, 64),
    first=st.floats(0.1, 500),
    second=st.floats(0.1, 500),
)
def test_extrapolation_adds_up_in_real_k(
    decay: float, tau: float, first: float, second: float
) -> None:
    """With E[g] constant, k1 steps and then k2 are k1 + k2; the start is m_0 = 0."""
    estimate = 1 - decay**tau  # the mean's moment, where E[g] = 1
    carried = estimate * (1 + extrapolation_gain(decay, tau, first))
    assert carried == pytest.approx(1 - decay ** (tau + first), rel=1e-9)
    twice = 1 + (carried - 1) * decay**second
    at_once = estimate * (1 + extrapolation_gain(decay, tau, first + second))
    assert twice == pytest.approx(at_once, rel=1e-9)


@pytest.mark.parametrize("size", [8, 64])
def test_the_step_count_keeps_the_bias_correction_right(size: int) -> None:
    """Local step counts would make v / (1 - b2^t) 3.74, 4.47, ... in place of 2."""
    replica = Replica.of("bmuf_adam", Point([0.0]), partial(Adam, lr=1e-3), 0, size)
    for _ in range(5):
        for _ in range(8):
            run(replica.step([2**0.5]))
        _, v, step = moments(replica)
        assert v / (1 - 0.999**step) == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize(
    ("nesterov", "ahead"),
    [(True, [2.64, 7.176, 11.2584, 14.9326]), (False, [0.0, 2.64, 7.176, 11.2584])],
)
def test_equivalent_steps_with_a_block_lr_below_1(
    nesterov: bool, ahead: list[float]
) -> None:
    """The step count tells k; the first block of CBM would be -2.4."""
    options = {"momentum": 0.9, "block_lr": 0.7, "nesterov": nesterov}
    replica = Replica.of("bmuf_adam", Point([0.0]), ADAM, 0, 2, **options)
    for k in ahead:
        before = moments(replica)[2] if replica.optimizer.state else 0.0
        for _ in range(8):
            run(replica.step([1.0]))
        assert moments(replica)[2] - before - 8 == pytest.approx(k, abs=6e-5)


def test_ba2_short_block() -> None:
    replica = Replica.of("bmuf_adam", Point([0.0]), ADAM, 0, 8, period=8)
    algorithm: Any = replica.algorithm
    seen = []
    for count in (8, 8, 3):
        for _ in range(count):
            run(replica.step([1.0]))
        if count == 3:
            end([replica])
        seen.append(filter_of(algorithm).rho)
    assert seen == [8, 15, 16.125]
    # own steps 19; k = 7 + 13.125 + 14.109375
    assert moments(replica)[2] == 19 + 34.234375
    assert extrapolation_gain(0.9, 3, 14.109375) == pytest.approx(2.0816937, rel=1e-7)
    assert moments(replica)[0] / (1 - 0.9 ** moments(replica)[2]) == pytest.approx(1)


def test_ba3_scalar_trace() -> None:
    expected = [
        (-0.2, -0.3, 0.542, 0.148505, 3.0, 2),
        (-0.47918069836, -0.618771047541, 0.991661598801, 0.316195395304, 6.5, 3),
        (-0.797486626783, -0.956639590994, 1.32077178609, 0.489437042808, 10.25, 3.5),
    ]
    replicas = points(2, period=2)
    for theta, init, m, v, s, rho in expected:
        for _ in range(2):
            run(*(r.step([g]) for r, g in zip(replicas, (1.0, 3.0), strict=True)))
        for replica in replicas:
            algorithm: Any = replica.algorithm
            assert filter_of(algorithm).theta.item() == pytest.approx(theta, rel=1e-11)
            assert replica.x[0] == pytest.approx(init, rel=1e-11)
            assert moments(replica) == pytest.approx((m, v, s), rel=1e-11)
            assert filter_of(algorithm).rho == rho
            assert m / (1 - 0.9**s) == pytest.approx(2, rel=1e-11)
            assert moments(replica)[1] / (1 - 0.99**s) == pytest.approx(5, rel=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ba4_gradients_that_vanish_leave_no_negative_variance(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    model = Point(torch.randn(200).tolist(), dtype)
    make = partial(Adam, lr=1e-3, betas=(0.9, 0.95))
    replica = Replica.of("bmuf_adam", model, make, 0, 64)
    algorithm: Any = replica.algorithm
    v = torch.zeros(200, dtype=dtype)
    for step in range(8 * 12):
        if step % 8 == 0:
            before = v.clone()
        gradient = torch.randn(200) if step < 16 else torch.zeros(200)
        run(replica.step(gradient.tolist()))
        v = replica.optimizer.state[replica.learner.parameters[0]]["exp_avg_sq"]
        assert (v >= 0).all()
        if step % 8 == 7:
            k = algorithm.rule.momentum * filter_of(algorithm).rho
            assert (v >= before * 0.95 ** (8 + k) * (1 - 2**-7)).all()
    assert replica.learner.params.isfinite().all()


def test_ba5_without_lookahead_moments_are_the_averages() -> None:
    carried = points(2, period=3, momentum=0.0)
    averaged = points(2, period=3, momentum=0.0, name="bmuf")
    for replicas in (carried, averaged):
        for step in range(6):
            run(*(r.step([r.learner.rank + step + 1]) for r in replicas))
    assert moments(carried[0]) == moments(averaged[0])
    assert carried[0].x == averaged[0].x


@pytest.mark.parametrize(
    ("mode", "m", "v", "step"),
    [
        ("average", 0.38, 0.0995, 2.0),
        ("reset", 0.0, 0.0, 0.0),
        ("local", 0.19, 0.0199, 2.0),
    ],
)
def test_other_fates_of_moments(mode: str, m: float, v: float, step: float) -> None:
    replicas = points(2, period=2, moments=mode)
    for _ in range(2):
        run(*(r.step([g]) for r, g in zip(replicas, (1.0, 3.0), strict=True)))
    assert moments(replicas[0]) == pytest.approx((m, v, step), rel=1e-12)
    assert replicas[0].x == replicas[1].x


def test_momentum_of_sgd_is_carried_along_too() -> None:
    replicas = points(2, partial(SGD, lr=0.1, momentum=0.9), period=2)
    for _ in range(2):
        run(*(r.step([g]) for r, g in zip(replicas, (1.0, 3.0), strict=True)))
    state = replicas[0].optimizer.state[replicas[0].learner.parameters[0]]
    # as if the third step (k = 1) had been taken: 2 (1 + .9 + .81)
    assert state["momentum_buffer"].item() == pytest.approx(2 * 2.71, rel=1e-12)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(1, dtype=torch.float64))


def blocks_of_two(replicas: list[Replica], late: int, blocks: int) -> None:
    """`a` has a gradient in each step, `b` from block `late` on."""
    for block in range(blocks):
        for _ in range(2):
            for replica in replicas:
                replica.model.a.grad = torch.tensor([2.0], dtype=torch.float64)
                if block >= late:
                    replica.model.b.grad = torch.tensor([2.0], dtype=torch.float64)
                replica.optimizer.step()
                replica.learner.steps += 1
            run(*(r.algorithm.after_step(r.learner) for r in replicas))


def two(size: int = 2, **options: Any) -> list[Replica]:
    return several("bmuf_adam", Two, ADAM, size, period=2, **options)


def estimate(replica: Replica, parameter: Tensor, decay: float = 0.9) -> float:
    state = replica.optimizer.state[parameter]
    return float(state["exp_avg"] / (1 - decay ** state["step"].double()))


@pytest.mark.parametrize(
    ("fate", "steps"), [("extrapolate", (5.125, 10.25)), ("average", (3.0, 6.0))]
)
def test_a_parameter_used_by_one_learner_only_shifts_no_other(
    fate: str, steps: tuple[float, float]
) -> None:
    """R3: a flat vector without it would pair `b` of one with `a` of the other."""
    replicas = two(moments=fate)
    for _ in range(6):
        for replica in replicas:
            rank = replica.learner.rank
            for parameter, used in ((replica.model.a, rank == 1), (replica.model.b, 1)):
                if used:
                    value = 2.0 if parameter is replica.model.a else 5.0
                    parameter.grad = torch.tensor([value], dtype=torch.float64)
            replica.optimizer.step()
            replica.learner.steps += 1
        run(*(r.algorithm.after_step(r.learner) for r in replicas))
    for name, count in zip("ab", steps, strict=True):
        states = [r.optimizer.state[getattr(r.model, name)] for r in replicas]
        assert states[0]["step"] == count
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(states[0][key], states[1][key])
    assert torch.equal(replicas[0].learner.params, replicas[1].learner.params)
    assert estimate(replicas[0], replicas[0].model.b) == pytest.approx(5, rel=1e-6)
    assert replicas[0].optimizer.state[replicas[0].model.a]["exp_avg"] < 2


def test_each_group_has_its_own_decays() -> None:
    def make(parameters: Iterable[nn.Parameter]) -> Adam:
        decays = [(0.9, 0.99), (0.5, 0.8)]
        groups = zip(parameters, decays, strict=True)
        return Adam([{"params": [p], "betas": b} for p, b in groups], eps=0.0)

    replicas = several("bmuf_adam", Two, make, 2, period=2)
    blocks_of_two(replicas, late=0, blocks=3)
    model = replicas[0].model
    for parameter, first, second in ((model.a, 0.9, 0.99), (model.b, 0.5, 0.8)):
        assert estimate(replicas[0], parameter, first) == pytest.approx(2, rel=1e-6)
        v = replicas[0].optimizer.state[parameter]["exp_avg_sq"].item()
        assert v / (1 - second**10.25) == pytest.approx(4, rel=1e-6)


def test_a_parameter_used_late_or_never_has_a_step_count_of_its_own() -> None:
    """m / (1 - b^s) must be the gradient, whenever the parameter came into use."""
    late, never = two(), two()
    blocks_of_two(late, late=1, blocks=3)
    blocks_of_two(never, late=9, blocks=3)
    assert estimate(late[0], late[0].model.b) == pytest.approx(2, rel=1e-6)
    assert never[0].optimizer.state[never[0].model.b]["exp_avg"].item() == 0
    assert estimate(never[0], never[0].model.a) == pytest.approx(2, rel=1e-6)


def excess_loss(seed: int, **options: Any) -> float:
    """Adam on a noisy quadratic of condition 316: 1,024 minibatches by 8 learners."""
    curvature = torch.logspace(0, -2.5, 50, dtype=torch.float64)

    def learner(rank: int) -> VirtualLearner:
        model = Point([1.0] * 50)

        def gradient(_: int) -> float:
            noise = 0.1 * torch.randn(50, dtype=torch.float64)
            model.x.grad = curvature * model.x.detach() + noise
            return 0.0

        adam = Adam(model.parameters(), lr=0.01)
        return VirtualLearner(
            model, adam, gradient, "bmuf", rank, 8, warmup=0, **options
        )

    simulation = started([learner(rank) for rank in range(8)], seed=seed)
    simulation.epoch(1024 // 8)
    return float(curvature @ simulation.consensus().square() / 2)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ba6_extrapolated_moments_learn_faster_than_averaged_ones(seed: int) -> None:
    """The order of the table of BA6, in a sixteenth of its minibatches."""
    extrapolated = excess_loss(seed, moments="extrapolate")
    averaged = excess_loss(seed, moments="average")
    assert extrapolated < 0.7 * averaged


@pytest.mark.parametrize("start", [2.0**20, 2.0**21 - 1, 2.0**23 - 2])
def test_extrapolation_in_long_runs(start: float) -> None:
    """Steps are float32: what a block adds to a large count must not be rounded."""

    def resumed(parameters: Iterable[nn.Parameter]) -> Adam:
        optimizer = ADAM(parameters)
        for parameter in optimizer.param_groups[0]["params"]:
            zeros = {"exp_avg": torch.zeros_like(parameter)}
            zeros["exp_avg_sq"] = torch.zeros_like(parameter)
            optimizer.state[parameter] = {"step": torch.tensor(start), **zeros}
        return optimizer

    replicas = points(2, resumed, period=2)
    for replica in replicas:  # They resume: their moments are known to be equal.
        state = replica.algorithm.state_dict()
        state["fragments"][0]["moments"]["loaded"] = False
        replica.algorithm.load_state_dict(state)
    for m in (0.542, 0.991661598801, 1.32077178609):  # as in BA3
        for _ in range(2):
            run(*(r.step([g]) for r, g in zip(replicas, (1.0, 3.0), strict=True)))
        assert moments(replicas[0])[0] == pytest.approx(m, rel=1e-9)
        assert moments(replicas[0])[2] < 2**24


@pytest.mark.parametrize("exchange", ["float32", "bfloat16"])
@pytest.mark.parametrize("delay", [0, 2])
def test_schedules_of_the_decays_that_are_out_of_phase(
    delay: int, exchange: str
) -> None:
    """Learners whose kappas differ would have moments that part more in each block."""
    replicas = points(4, period=8, delay=delay, exchange=exchange)
    for first in range(0, 320, 80):
        for step in range(first, first + 80):
            for replica in replicas:
                # A step of the schedule was left out on learner 1.
                phase = (step - (replica.learner.rank == 1)) % 100 / 100
                betas = 0.95 - 0.1 * phase, 0.999
                replica.optimizer.param_groups[0]["betas"] = betas
            run(*(r.step([1.0 + step % (2 + r.learner.rank)]) for r in replicas))
        end(replicas)
        assert len({moments(replica) for replica in replicas}) == 1
