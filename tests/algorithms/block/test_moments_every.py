"""Moments that are averaged every few blocks (docs/algorithms/block.md, MP1 to MP4)."""

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import check
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import Simulation
from tests.replicas import Point, Replica, run
from tests.virtual import points

SIZE, PERIOD = 3, 2
BETAS = (0.9, 0.99)
ADAM = partial(Adam, lr=0.01, betas=BETAS)


def gradient(rank: int, step: int) -> list[float]:
    source = np.random.default_rng([rank, step])
    return list(source.normal(size=4))


def replicas(
    name: str = "local_sgd", make: Any = ADAM, **options: Any
) -> list[Replica]:
    options = {"period": PERIOD, "moments": "average", **options}
    return [
        Replica.of(name, Point([0.0] * 4), make, rank, SIZE, **options)
        for rank in range(SIZE)
    ]


def train(found: list[Replica], count: int, start: int = 0) -> None:
    def steps(replica: Replica) -> Any:
        for step in range(start, start + count):
            yield from replica.step(gradient(replica.learner.rank, step))

    run(*(steps(r) for r in found))


def moments(found: list[Replica], name: str) -> np.ndarray[Any, Any]:
    states = [next(iter(r.optimizer.state.values())) for r in found]
    return np.array([state[name].numpy() for state in states])


@pytest.mark.parametrize("every", [(1, 1), (2, 3), (3, 1), (3, 6)])
def test_mp1_each_moment_is_averaged_at_its_own_blocks(every: tuple[int, int]) -> None:
    first, second = every
    found = replicas(first_moment_every=first, second_moment_every=second)
    m, v = np.zeros((SIZE, 4)), np.zeros((SIZE, 4))
    for block in range(1, 8):
        for step in range(PERIOD * (block - 1), PERIOD * block):
            g = np.array([gradient(rank, step) for rank in range(SIZE)])
            m = BETAS[0] * m + (1 - BETAS[0]) * g
            v = BETAS[1] * v + (1 - BETAS[1]) * g * g
        if block % first == 0:
            m[:] = m.mean(0)
        if block % second == 0:
            v[:] = v.mean(0)
        train(found, PERIOD, PERIOD * (block - 1))
        np.testing.assert_allclose(moments(found, "exp_avg"), m, rtol=1e-12)
        np.testing.assert_allclose(moments(found, "exp_avg_sq"), v, rtol=1e-12)


@pytest.mark.parametrize("name", ["local_sgd", "bmuf", "slowmo"])
def test_mp2_the_mean_of_the_moments_is_what_averages_in_each_block_give(
    name: str,
) -> None:
    """Moments are linear in gradients, whose values are given."""
    rare = replicas(name, first_moment_every=2, second_moment_every=3)
    often = replicas(name)
    train(rare, 7 * PERIOD)
    train(often, 7 * PERIOD)
    for moment in ("exp_avg", "exp_avg_sq"):
        mean = moments(rare, moment).mean(0)
        np.testing.assert_allclose(mean, moments(often, moment)[0], rtol=1e-12)
        assert not np.allclose(moments(rare, moment), mean)


@pytest.mark.parametrize("steps", [2, 4, 5])
@pytest.mark.parametrize("every", [2, 3])
def test_mp2_a_delay_leaves_no_average_of_the_moments_out(
    every: int, steps: int
) -> None:
    """An epoch that ends with a block ends with another one, without updates."""
    delayed, blocks = replicas(first_moment_every=every, delay=1), 0
    for number in range(6):
        start = number * steps
        run(
            *(
                r.epoch([gradient(r.learner.rank, start + n) for n in range(steps)])
                for r in delayed
            )
        )
        blocks += math.ceil(steps / PERIOD)
        equal = np.ptp(moments(delayed, "exp_avg"), axis=0).max() == 0
        assert equal == (blocks % every == 0), number


def test_mp3_sgds_momentum_is_a_first_moment() -> None:
    make = partial(SGD, lr=0.01, momentum=0.9)
    found = replicas(make=make, first_moment_every=2)
    for block in range(4):
        train(found, PERIOD, PERIOD * block)
        equal = np.ptp(moments(found, "momentum_buffer"), axis=0).max() == 0
        assert equal == (block % 2 == 1)


@pytest.mark.parametrize("delay", [0, 1])
def test_mp4_bytes_and_resume(delay: int) -> None:
    options = {"first_moment_every": 2, "second_moment_every": 3, "delay": delay}
    whole = replicas(**options)
    states = []
    for step in range(14):
        states.append(
            [
                copy.deepcopy(
                    (
                        r.learner.state_dict(),
                        r.optimizer.state_dict(),
                        r.algorithm.state_dict(),
                    )
                )
                for r in whole
            ]
        )
        train(whole, 1, step)
    for cut, saved in enumerate(states):
        resumed = replicas(**options)
        for replica, (learner, optimizer, algorithm) in zip(
            resumed, saved, strict=True
        ):
            replica.learner.load_state_dict(learner)
            replica.optimizer.load_state_dict(copy.deepcopy(optimizer))
            replica.algorithm.load_state_dict(algorithm)
        train(resumed, 14 - cut, cut)
        for mine, theirs in zip(resumed, whole, strict=True):
            assert torch.equal(mine.learner.params, theirs.learner.params), cut


def test_mp4_an_average_that_is_left_out_sends_nothing() -> None:
    sent = []
    for every in (1, 6):
        learners = points(
            "local_sgd",
            2,
            lambda model, rank: (
                lambda step: float((model.x.sum() * (rank + step)).backward() or 0)
            ),
            Adam,
            period=2,
            moments="average",
            first_moment_every=min(every, 3),
            second_moment_every=every,
        )
        simulation = Simulation(learners)
        simulation.start()
        before = learners[0].bytes_sent
        simulation.epoch(12)
        sent.append(learners[0].bytes_sent - before)
    left_out = 4 + 5  # of six averages of the first moment and six of the second
    assert sent[0] - sent[1] == left_out * 2 * 8


@pytest.mark.parametrize(
    ("name", "conf", "words"),
    [
        ("bmuf_adam", {"first_moment_every": 2}, "needs moments: average, not extra"),
        ("local_sgd", {"second_moment_every": 6}, "needs moments: average, not local"),
        ("bmuf", {"first_moment_every": 0}, "first_moment_every must be >= 1, not 0"),
        (
            "bmuf",
            {"second_moment_every": 2, "exchange": "bfloat16"},
            "second_moment_every: 2 needs exchange: float32, not bfloat16",
        ),
    ],
)
def test_what_cannot_be_is_refused(name: str, conf: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check(name, conf, 2)
