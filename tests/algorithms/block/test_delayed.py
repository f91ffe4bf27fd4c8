"""Averages that come late: for all that end blocks by them (`delay`)."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS, check
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.consistent import NOISE, SHARED
from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    VirtualLearner,
)
from tests.replicas import Point, Replica, run, several
from tests.virtual import along, noisy, points, started, x

NAMES = [name for name, entry in ALGORITHMS.items() if hasattr(entry.config, "delay")]
SIZE, PERIOD, STEPS = 3, 4, 11
ADAM = partial(Adam, betas=(0.9, 0.99))
MOMENTUM = partial(SGD, momentum=0.9)


def gradients(seed: int = 0) -> list[list[float]]:
    source = random.Random(seed)
    return [[source.uniform(-1, 1) for _ in range(3 * STEPS)] for _ in range(SIZE)]


def trained(
    name: str, delay: int, make: Callable[..., Any], epochs: list[Any], **options: Any
) -> list[VirtualLearner]:
    """Descend given gradients: the same whatever the parameters are."""
    given = gradients()
    learners = points(
        name,
        SIZE,
        lambda model, rank: along(model, given[rank]),
        make,
        **{"period": PERIOD, "delay": delay, **options},
    )
    simulation = started(learners, Compute(spread=1))
    for epoch in epochs:
        simulation.epoch(epoch)
    return learners


def test_a_trace() -> None:
    """Blocks of 2 steps, 1 late: means 4 and 8, the last block 1 step long."""
    replicas = several(
        "local_sgd", lambda: Point([0.0]), partial(SGD, lr=1.0), 2, period=2, delay=1
    )
    trace: list[Any] = [[], []]

    def steps(replica: Replica) -> Any:
        rank = replica.learner.rank
        for _ in range(5):
            yield from replica.step([-1.0 - 2 * rank])
            trace[rank].append(replica.x[0])
        yield from replica.algorithm.finish(replica.learner)
        trace[rank].append(replica.x[0])

    run(*(steps(replica) for replica in replicas))
    assert trace == [[1, 2, 5, 6, 9, 10], [3, 6, 7, 10, 11, 10]]


@pytest.mark.parametrize("delay", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_without_momentum_inside_nothing_is_lost(name: str, delay: int) -> None:
    """Given gradients: late or at once, the same steps add up to the same place."""
    options = {} if name in ("local_sgd", "diloco") else {"moments": "average"}
    epochs = [STEPS, 0, [5, 9, 0], STEPS]
    at_once = trained(name, 0, SGD, epochs, **options)
    late = trained(name, delay, SGD, epochs, **options)
    for mine, theirs in zip(late, at_once, strict=True):
        assert x(mine) == pytest.approx(x(theirs), rel=1e-12)
        a, b = (v.algorithm.state_dict()["fragments"][0] for v in (mine, theirs))
        for key in ("theta", "delta"):
            torch.testing.assert_close(a[key], b[key], rtol=1e-12, atol=1e-12)
        assert (a["rho"], a["taken"]) == (b["rho"], b["taken"])


def averaged(state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state without the noise that each learner follows."""
    return {key: state[key] for key in state.keys() - {NOISE, SHARED}}


@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("make", [ADAM, MOMENTUM])
@pytest.mark.parametrize("moments", ["extrapolate", "average", "reset"])
def test_moments_are_those_of_a_replacement_at_once(
    moments: str, make: Any, delay: int
) -> None:
    for epochs in ([STEPS], [PERIOD], [PERIOD + delay], [[5, 2, 8], STEPS]):
        late = trained("bmuf", delay, make, epochs, moments=moments)
        at_once = trained("bmuf", 0, make, epochs, moments=moments)
        for mine, theirs in zip(late, at_once, strict=True):
            states = [v.optimizer.state_dict()["state"][0] for v in (mine, theirs)]
            assert states[0].keys() == states[1].keys()
            # fractional step counts, and what depends on them, are float32
            close = 1e-6 if moments == "extrapolate" else 1e-12
            for key, value in averaged(states[0]).items():
                torch.testing.assert_close(value, states[1][key], rtol=close, atol=0)


def test_the_second_moment_never_falls_below_zero() -> None:
    """Gradients of very different sizes in float32, and then none."""
    make = partial(Adam, lr=1e-3, betas=(0.9, 0.95))
    start = partial(Point, [0.0] * 50, torch.float32)
    replicas = several("bmuf_adam", start, make, 2, period=3, delay=2)
    source = torch.Generator().manual_seed(0)

    def steps(replica: Replica) -> Any:
        for step in range(60):
            size = 10.0 ** (3 - step) if step < 9 else 0.0
            drawn = torch.randn(50, generator=source) * size
            yield from replica.step(drawn.tolist())
            state = replica.optimizer.state[replica.learner.parameters[0]]
            assert (state["exp_avg_sq"] >= 0).all()
        assert replica.learner.params.isfinite().all()

    run(*(steps(replica) for replica in replicas))


def test_skipped_updates_while_an_average_is_under_way() -> None:
    """A moment decays by updates, not by steps; nobody stepped in the first window."""
    ends = []
    for delay in (0, 2):
        start = partial(Point, [0.0])
        replicas = several("bmuf", start, ADAM, 2, period=3, delay=delay)
        run(
            replicas[0].epoch([1.0, 2.0, 3.0, None, None, 1.0, None, 2.0, 4.0]),
            replicas[1].epoch([3.0, None, 1.0, None, None, 2.0, 1.0, None, 2.0]),
        )
        for replica in replicas:
            state = replica.optimizer.state[replica.learner.parameters[0]]
            ends.append([float(value) for value in averaged(state).values()])
        assert replicas[0].x == replicas[1].x
    assert ends[2] == pytest.approx(ends[0], rel=1e-12)
    assert ends[3] == pytest.approx(ends[1], rel=1e-12)


def test_the_next_steps_hide_the_communication() -> None:
    """All-reduces of 1.5 steps: late, only the last one of the epoch is waited for."""
    seconds = []
    for delay in (0, 2):
        learners = points(
            "local_sgd", SIZE, lambda m, _: noisy(m), period=PERIOD, delay=delay
        )
        network = Network(between=Link(latency=1.5 / (2 * (SIZE - 1))))
        simulation = started(learners, Compute(seconds=1), network)
        begun = simulation.seconds
        simulation.epoch(5 * PERIOD + 2)
        seconds.append(simulation.seconds - begun)
    steps = 5 * PERIOD + 2
    assert seconds[1] < steps + 4 * 1.5 < steps + 10 * 1.5 <= seconds[0]


@pytest.mark.parametrize("delay", [-1, 4, 5])
def test_a_delay_is_shorter_than_a_block(delay: int) -> None:
    with pytest.raises(InputError, match=r"delay must be in \[0, period\)"):
        check("bmuf", {"period": 4, "delay": delay}, 2)
