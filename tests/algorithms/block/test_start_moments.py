"""Moments of a start in half the memory (docs/algorithms/block.md, SM1 to SM5)."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import check
from espnet_distopt.algorithms.block.stochastic_rounding import to_bfloat16
from espnet_distopt.errors import InputError
from tests.replicas import Point, Replica, end, load, run, saved

ADAM = partial(Adam, lr=0.01, betas=(0.9, 0.99))
MOMENTUM = partial(SGD, lr=0.01, momentum=0.9)
SIZE, LEARNERS, PERIOD = 600, 2, 4
VARIANTS: list[dict[str, Any]] = [
    {},
    {"delay": 2},
    {"exchange": "bfloat16"},
    {"delay": 2, "exchange": "bfloat16"},
]


def test_sm1_it_rounds_to_a_neighbour_in_bfloat16() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    for salt in range(4):
        rounded = to_bfloat16(values, salt)
        assert torch.equal(rounded, rounded.bfloat16().float())
        assert torch.equal(to_bfloat16(rounded, salt + 1), rounded)
        _, exponent = values.frexp()
        gap = torch.ldexp(torch.ones_like(values), exponent - 8)
        assert ((rounded - values).abs() < gap).all()


@pytest.mark.parametrize("value", [1 + 2**-10, 0.3, -0.7, 1e-8, -1.0039, 3e38])
def test_sm1_its_mean_over_blocks_is_the_value(value: float) -> None:
    count = 20_000
    one = torch.tensor([value])
    rounded = torch.cat([to_bfloat16(one, block) for block in range(count)]).double()
    gap = 2.0 ** (one.abs().frexp().exponent.item() - 8)
    # Independent draws have a standard deviation of half a gap at most.
    assert abs(rounded.mean().item() - one.item()) < 4 * gap / 2 / count**0.5


def test_sm1_its_mean_over_values_is_theirs() -> None:
    values = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) + 1
    for block in range(5):
        error = (to_bfloat16(values, block) - values).double().mean().item()
        assert abs(error) < 4 * 2**-7 / 2 / 1000


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf"), float("-inf"), 1e-45])
def test_special_values_keep_their_kind(value: float) -> None:
    for block in range(100):
        (found,) = to_bfloat16(torch.tensor([value]), block).tolist()
        assert found == value or 0 <= found < 1e-40


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1])
def test_what_is_no_number_stays_so(bits: int) -> None:
    """The largest positive pattern is the NaN that GPUs compute."""
    values = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    assert all(to_bfloat16(values, block).isnan() for block in range(100))


def replicas(
    make: Any = ADAM, start_moments: str = "bfloat16", **options: Any
) -> list[Replica]:
    return [
        Replica.of(
            "bmuf_adam",
            Point([0.0] * SIZE, torch.float32),
            make,
            rank,
            LEARNERS,
            period=PERIOD,
            start_moments=start_moments,
            **options,
        )
        for rank in range(LEARNERS)
    ]


def train(found: list[Replica], first: int, stop: int, mean: float = 0.0) -> None:
    def steps(replica: Replica) -> Any:
        for step in range(first, stop):
            source = torch.Generator().manual_seed(1000 * replica.learner.rank + step)
            yield from replica.step(
                (torch.randn(SIZE, generator=source) + mean).tolist()
            )

    run(*(steps(replica) for replica in found))


def starts(replica: Replica) -> dict[str, torch.Tensor]:
    (fragment,) = replica.algorithm.state_dict()["fragments"]
    init: dict[str, torch.Tensor] = fragment["moments"]["init"]
    return init


def live(replica: Replica, name: str) -> torch.Tensor:
    (parameter,) = replica.learner.parameters
    moment: torch.Tensor = replica.optimizer.state[parameter][name]
    return moment


@pytest.mark.parametrize("make", [ADAM, MOMENTUM])
@pytest.mark.parametrize("exchange", ["float32", "bfloat16"])
def test_sm2_a_block_starts_from_what_is_kept(exchange: str, make: Any) -> None:
    found = replicas(make, exchange=exchange)
    for block in range(3):
        train(found, PERIOD * block, PERIOD * (block + 1))
        for name, start in starts(found[0]).items():
            assert start.dtype == torch.bfloat16
            assert start.any()
            for replica in found:
                assert torch.equal(live(replica, name), start.float())


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_sm3_all_learners_have_the_same_bits(variant: dict[str, Any]) -> None:
    found = replicas(**variant)
    train(found, 0, 11)
    end(found)
    one, other = found
    assert torch.equal(one.learner.params, other.learner.params)
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(live(one, name), live(other, name))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_sm4_resumed_at_every_step_it_is_the_uninterrupted_run(
    variant: dict[str, Any],
) -> None:
    whole = replicas(**variant)
    states = []
    for step in range(10):
        states.append([saved(replica) for replica in whole])
        train(whole, step, step + 1)
    for begun, state in enumerate(states):
        resumed = replicas(**variant)
        for replica, own in zip(resumed, state, strict=True):
            load(replica, own)
        train(resumed, begun, 10)
        for mine, theirs in zip(resumed, whole, strict=True):
            assert torch.equal(mine.learner.params, theirs.learner.params), begun


@pytest.mark.parametrize("delay", [0, 2])
def test_sm5_a_slow_average_is_not_held_up_by_rounding(delay: int) -> None:
    """Squares grow from 1 to 1.1, by less than half a gap in each block.

    Rounded to nearest they would stay at 1 for ever.
    """
    slow = partial(Adam, lr=0.0, betas=(0.9, 0.9995))
    ends = []
    for start_moments in ("float32", "bfloat16"):
        found = replicas(slow, start_moments, momentum=0.0, delay=delay)
        train_constant(found, 1.0, PERIOD)
        for replica in found:
            live(replica, "exp_avg_sq").fill_(1.0)
        for _ in range(60):
            train_constant(found, 1.1**0.5, PERIOD)
        ends.append(live(found[0], "exp_avg_sq").double().mean().item())
    assert 1.01 < ends[0] < 1.02
    assert ends[1] == pytest.approx(ends[0], abs=4 * 0.004 * (60 / SIZE) ** 0.5)
    assert ends[1] > 1.005


def train_constant(found: list[Replica], gradient: float, steps: int) -> None:
    """Every element has a gradient of its own, a little beside the given one."""
    spread = torch.linspace(0.999, 1.001, SIZE)

    def program(replica: Replica) -> Any:
        for _ in range(steps):
            yield from replica.step((gradient * spread).tolist())

    run(*(program(replica) for replica in found))


def test_a_training_goes_where_float32_leads() -> None:
    exact, rounded = replicas(start_moments="float32"), replicas()
    for found in (exact, rounded):
        train(found, 0, 80, mean=0.3)
        end(found)
    there = exact[0].learner.params
    away = (rounded[0].learner.params - there).norm() / there.norm()
    assert 0 < away < 0.01


@pytest.mark.parametrize(
    ("before", "after"), [("float32", "bfloat16"), ("bfloat16", "float32")]
)
def test_the_precision_may_change_when_a_run_is_resumed(
    before: str, after: str
) -> None:
    found = replicas(start_moments=before)
    train(found, 0, 8)
    end(found)
    others = replicas(start_moments=after)
    for replica, other in zip(found, others, strict=True):
        load(other, saved(replica))
    # What has been rounded to nearest is no start to extrapolate from.
    (fragment,) = others[0].algorithm.state_dict()["fragments"]
    assert fragment["moments"]["loaded"] == (after == "bfloat16")
    for each in (found, others):
        train(each, 8, 16)
    there = found[0].learner.params
    assert (others[0].learner.params - there).norm() / there.norm() < 0.1


@pytest.mark.parametrize("moments", ["average", "local", "reset"])
def test_it_needs_moments_that_are_extrapolated(moments: str) -> None:
    options = {"start_moments": "bfloat16", "moments": moments}
    with pytest.raises(InputError, match="start_moments: bfloat16 needs moments: extr"):
        check("bmuf_adam", options, LEARNERS)
