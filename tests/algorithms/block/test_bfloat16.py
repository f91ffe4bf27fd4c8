"""Averages of blocks in bfloat16 (docs/algorithms/block.md, BH1 to BH7)."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS, check
from espnet_distopt.algorithms.block.compression import average_changes
from espnet_distopt.algorithms.block.moments import extrapolation_gain
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import NOISE
from espnet_distopt.simulation import (
    Compute,
    Fault,
    Link,
    Network,
    VirtualLearner,
)
from tests.replicas import Point, Replica, filter_of, load, run, saved, several
from tests.virtual import along_each, drawn, points, started

SIZE = 300
NAMES = [name for name, entry in ALGORITHMS.items() if hasattr(entry.config, "keep")]
FLOAT = torch.float64
PLAIN = partial(SGD, lr=0.1)
MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
ADAM = partial(Adam, lr=0.1, betas=(0.9, 0.99))
GIVEN = along_each(lambda rank, step: drawn(1000 * rank + step, SIZE))


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().to(FLOAT)


def replicas(name: str, size: int, make: Any = PLAIN, **options: Any) -> list[Replica]:
    options = {"period": 3, "exchange": "bfloat16", **options}
    start = drawn(99, SIZE).tolist()
    return several(name, lambda: Point(start), make, size, **options)


def gradients(rank: int, count: int, start: int = 0) -> list[list[float]]:
    return [
        drawn(1000 * rank + step, SIZE).tolist() for step in range(start, start + count)
    ]


def train(found: list[Replica], count: int, start: int = 0) -> None:
    """Take steps along given gradients, and do not end the epoch."""

    def steps(replica: Replica) -> Any:
        for gradient in gradients(replica.learner.rank, count, start):
            yield from replica.step(gradient)

    run(*(steps(r) for r in found))


def epoch(found: list[Replica], count: int, start: int = 0) -> None:
    run(*(r.epoch(gradients(r.learner.rank, count, start)) for r in found))


def moments(replica: Replica) -> dict[str, Tensor]:
    """The optimizer's moments, copied, without the noise that each learner follows."""
    return {
        key: value.clone()
        for state in replica.optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, Tensor) and value.ndim and key != NOISE
    }


def parts(replica: Replica) -> dict[str, Tensor]:
    return {"parameters": replica.learner.params.clone(), **moments(replica)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bh1_a_change_keeps_eight_bits_however_small_it_is(dtype: torch.dtype) -> None:
    start = drawn(0, SIZE).to(dtype)
    for size in (1e3, 1.0, 1e-3):
        change = drawn(2, SIZE).to(dtype) * size
        there = start + change
        back = there.clone()
        run(average_changes(back, start.clone, None))
        error = (back - there).abs()
        rounding = torch.finfo(dtype).eps * 8 * (1 + size)
        assert error.any() and (error <= 2**-8 * change.abs() + rounding).all()
    back = start.clone()
    run(average_changes(back, start.clone, None))
    assert torch.equal(back, start)


@pytest.mark.parametrize("nesterov", [True, False])
def test_bh2_bmuf_is_its_equations(nesterov: bool) -> None:
    eta, zeta = 0.5, 0.8
    found = replicas("bmuf", 2, momentum=eta, block_lr=zeta, nesterov=nesterov)
    theta, delta, init = (
        drawn(99, SIZE),
        torch.zeros(SIZE, dtype=FLOAT),
        drawn(99, SIZE),
    )
    for block in range(4):
        sent = []
        for rank in (0, 1):
            own = torch.tensor(gradients(rank, 3, 3 * block), dtype=FLOAT)
            x = init.clone()
            for gradient in own:
                x -= 0.1 * gradient
            sent.append(rounded(x - init))
        mean = init + rounded(rounded(sent[0] + sent[1]) / 2)
        delta = eta * delta + zeta * (mean - init)
        theta = theta + delta
        init = theta + (eta if nesterov else 0) * delta
        train(found, 3, 3 * block)
        for replica in found:
            torch.testing.assert_close(
                replica.learner.params, init, rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize("make", [ADAM, MOMENTUM])
@pytest.mark.parametrize("name", ["bmuf", "bmuf_adam"])
def test_bh3_moments_are_their_equations(name: str, make: Any) -> None:
    found = replicas(name, 2, make, momentum=0.5)
    starts: dict[str, Tensor] = {}
    for block in range(4):
        train(found, 2, 3 * block)
        for replica in found:
            [gradient] = gradients(replica.learner.rank, 1, 3 * block + 2)
            replica.descend(gradient)
        before = [moments(r) for r in found]
        rho = 0.5 * filter_of(found[0].algorithm).rho + 3
        run(*(r.algorithm.after_step(r.learner) for r in advanced(found)))
        for key, own in before[0].items():
            start = starts.get(key, torch.zeros(SIZE, dtype=FLOAT))
            decay = 0.99 if key == "exp_avg_sq" else 0.9
            sent = [rounded(each[key] - decay**3 * start) for each in before]
            mean = decay**3 * start + rounded(rounded(sent[0] + sent[1]) / 2)
            k = 0.5 * rho if name == "bmuf_adam" else 0
            kappa = extrapolation_gain(decay, 3, k)
            expected = mean + kappa * (mean - start)
            starts[key] = expected
            assert not torch.equal(own, expected)
            for replica in found:
                torch.testing.assert_close(
                    moments(replica)[key], expected, rtol=1e-9, atol=1e-12
                )


def advanced(found: list[Replica]) -> list[Replica]:
    for replica in found:
        replica.learner.steps += 1
    return found


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_bh6_a_training_is_close_to_that_in_float32(name: str, delay: int) -> None:
    """Given gradients: rounding errs by 2^-8 of a block's change, up or down."""
    found = replicas(name, 4, PLAIN, delay=delay)
    exact = replicas(name, 4, PLAIN, delay=delay, exchange="float32")
    epoch(found, 90)
    epoch(exact, 90)
    start, there = drawn(99, SIZE), exact[0].learner.params
    away = (found[0].learner.params - there).norm() / (there - start).norm()
    assert 0 < away < 0.01


@pytest.mark.parametrize("name", ["local_sgd", "bmuf_adam"])
def test_bh6_changes_far_below_the_weights_precision_add_up(name: str) -> None:
    """A weight of 100 has steps of 0.5 in bfloat16; 200 changes of 3e-3 are 0.6."""
    options: dict[str, Any] = {"period": 3, "exchange": "bfloat16"}
    options |= {"momentum": 0.0} if name == "bmuf_adam" else {}
    make = partial(SGD, lr=1e-3)
    found = several(name, lambda: Point([100.0]), make, 2, **options)
    run(*(r.epoch([-1.0] * 600) for r in found))
    assert found[0].x[0] == pytest.approx(100.6, abs=0.003)


@pytest.mark.parametrize("name", ["local_sgd", "bmuf"])
def test_another_exchange_goes_on_after_an_epoch(name: str) -> None:
    exact = replicas(name, 2, exchange="float32")
    epoch(exact, 6)
    found = replicas(name, 2)
    for replica, other in zip(found, exact, strict=True):
        load(replica, saved(other))
    before = found[0].learner.params.clone()
    epoch(found, 6, 6)
    epoch(exact, 6, 6)
    there = exact[0].learner.params
    away = (found[0].learner.params - there).norm() / (there - before).norm()
    assert 0 < away < 0.01
    back = replicas(name, 2, exchange="float32")
    load(back[0], saved(found[0]))
    assert torch.equal(back[0].learner.params, found[0].learner.params)


def test_another_exchange_is_refused_within_a_block() -> None:
    exact = replicas("local_sgd", 2, exchange="float32")
    train(exact, 1)
    with pytest.raises(InputError, match="within a block with exchange: float32"):
        load(replicas("local_sgd", 2)[0], saved(exact[0]))
    late = replicas("bmuf", 2, delay=2)
    train(late, 4)
    for mine, theirs in (("float32", "bfloat16"), ("bfloat16", "float32")):
        late = replicas("bmuf", 2, delay=2, exchange=theirs)
        train(late, 4)
        other = replicas("bmuf", 2, delay=2, exchange=mine)
        with pytest.raises(InputError, match="another `exchange`"):
            load(other[0], saved(late[0]))


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("name", ["bmuf", "bmuf_adam"])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_unequal_moments_that_are_loaded_become_equal(
    name: str, delay: int, at: int
) -> None:
    """One learner loads moments that are far from what the others have.

    Changes since a start that is not theirs would be rounded to other numbers, and a
    second moment could become 0, by which Adam divides.
    """
    small = Replica.of("local_sgd", Point([0.0] * SIZE), ADAM, period=100)
    run(small.epoch([[1e-4 * g for g in gradient] for gradient in gradients(5, 20)]))
    found = replicas(name, 2, ADAM, delay=delay, momentum=0.5)
    train(found, at)
    found[1].optimizer.load_state_dict(copy.deepcopy(small.optimizer.state_dict()))
    before = found[0].learner.params.clone()
    train(found, 15 - at, at)
    epoch(found, 0)
    one, other = moments(found[0]), moments(found[1])
    for key in one:
        assert torch.equal(one[key], other[key]), key
    assert torch.equal(found[0].learner.params, found[1].learner.params)
    steps = [next(iter(r.optimizer.state.values()))["step"] for r in found]
    assert steps[0] == steps[1]
    assert (found[0].learner.params - before).abs().max() < 15


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("exchange", ["float32", "bfloat16"])
def test_optimizers_with_unequal_states_at_first_become_equal(
    exchange: str, delay: int
) -> None:
    """Learner 1 has trained before; learner 0's optimizer is new."""
    before = Replica.of("local_sgd", Point([0.0] * SIZE), ADAM, period=100)
    run(before.epoch(gradients(7, 5)))

    def begun(parameters: Any) -> Adam:
        optimizer = ADAM(parameters)
        optimizer.load_state_dict(copy.deepcopy(before.optimizer.state_dict()))
        return optimizer

    options = {"period": 3, "delay": delay, "exchange": exchange}
    found = [
        Replica.of("bmuf_adam", Point([0.0] * SIZE), make, rank, 2, **options)
        for rank, make in enumerate([ADAM, begun])
    ]
    run(*(r.algorithm.start(r.learner) for r in found))
    epoch(found, 9)
    for key, value in parts(found[0]).items():
        assert torch.equal(value, parts(found[1])[key]), key


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("name", ["bmuf", "bmuf_adam"])
def test_second_moments_of_gradients_that_vanish_stay_positive(
    name: str, delay: int
) -> None:
    """Where v falls to a ten-thousandth in a block, its change rounds to all of v."""
    make = partial(Adam, lr=1e-3, betas=(0.5, 0.4))
    options = {"period": 12, "delay": delay, "exchange": "bfloat16"}
    found = several(name, lambda: Point([0.0] * 50, torch.float32), make, 2, **options)
    source = torch.Generator().manual_seed(0)

    def steps(replica: Replica) -> Any:
        for step in range(60):
            size = 1.0 if step < 10 else 1e-12
            yield from replica.step(
                torch.randn(50, generator=source).mul(size).tolist()
            )
            if step >= 12:
                assert (moments(replica)["exp_avg_sq"] > 0).all()
        assert replica.learner.params.abs().max() < 0.1

    run(*(steps(r) for r in found))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("local_sgd", {"exchange": "bfloat16"}),
        ("bmuf_adam", {"exchange": "bfloat16"}),
        ("local_sgd", {"keep": 0.02}),
    ],
)
@pytest.mark.parametrize("at", [0.5, 1.5, 2.5, 3.5, 6.0, 9.0])
def test_survivors_average_what_they_have_sent(
    name: str, options: dict[str, Any], at: float
) -> None:
    """Learner 2 dies in a step or in a collective, each of which takes seconds."""
    learners = virtual(name, 3, **options)
    simulation = started(
        learners,
        Compute(seconds=1),
        Network(between=Link(latency=1)),
        faults=[Fault(at=2.0 + at, rank=2, kind="crash")],
    )
    simulation.epoch(8)
    one, other = (v.learner for v in learners[:2])
    assert one.steps == other.steps == 8
    assert torch.equal(one.params, other.params)
    assert one.params.isfinite().all()


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_half_the_bytes_are_sent(name: str, delay: int) -> None:
    """Beside the numbers of the message, all that a block sends are two bytes each."""
    sent = []
    for exchange in ("float32", "bfloat16"):
        learners = virtual(name, 2, exchange=exchange, delay=delay)
        simulation = started(learners)
        before = learners[0].bytes_sent
        simulation.epoch(2)
        sent.append(learners[0].bytes_sent - before)
    flats = 3 if name in ("bmuf", "bmuf_adam") else 1
    averages = 2 if delay else 1  # With a delay, another one ends the epoch.
    assert sent[0] - sent[1] == averages * flats * SIZE * (8 - 2)


def virtual(name: str, size: int, **options: Any) -> list[VirtualLearner]:
    start = drawn(99, SIZE).tolist()
    return points(name, size, GIVEN, ADAM, at=start, period=2, **options)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="it needs exchange: float32, not bfloat16"):
        check("local_sgd", {"keep": 0.1, "exchange": "bfloat16"}, 2)
    with pytest.raises(InputError, match="exchange must be"):
        check("local_sgd", {"exchange": "float16"}, 2)
