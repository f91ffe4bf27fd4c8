"""Compressed averages of blocks (docs/algorithms/block.md, CB1 to CB7)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD

from espnet_distopt.algorithms import check
from espnet_distopt.algorithms.block.compression import (
    CHUNK,
    CompressedAverage,
    add_decoded,
    bytes_of_chunk,
    encode,
    kept_of_chunk,
)
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import (
    VirtualLearner,
)
from tests.replicas import Point, Replica, load, run, saved, several
from tests.virtual import along_each, drawn, points, started

SIZE = 600
"""Elements of the models here: two whole chunks and a part of one."""
METHODS: dict[str, dict[str, Any]] = {
    "local_sgd": {"second_moment": "local"},
    "slowmo": {"moments": "local"},
    "diloco": {},
    "bmuf": {"moments": "local"},
}


def oracle(chunk: Sequence[float], kept: int) -> list[float]:
    """What of a chunk arrives: its largest elements, in 127ths of the largest."""
    order = sorted(range(len(chunk)), key=lambda at: -abs(chunk[at]))[:kept]
    step = bfloat16(abs(chunk[order[0]])) / 127
    found = [0.0] * len(chunk)
    for at in order:
        found[at] = max(-127, min(127, round(chunk[at] / step))) * step
    return found


def bfloat16(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).bfloat16())


def decoded(message: Tensor, kept: int, chunks: int) -> Tensor:
    total = torch.zeros(chunks, CHUNK, dtype=torch.float64)
    add_decoded(message, kept, total)
    return total


def replicas(name: str, size: int, **options: Any) -> list[Replica]:
    make = options.pop("make", partial(SGD, lr=0.1))
    start = drawn(99, SIZE).tolist()
    return several(name, lambda: Point(start), make, size, **METHODS[name], **options)


def gradients(rank: int, count: int, start: int = 0) -> list[list[float]]:
    return [
        drawn(1000 * rank + step, SIZE).tolist() for step in range(start, start + count)
    ]


@pytest.mark.parametrize("kept", [1, 5, 100, 256])
def test_cb1_the_largest_elements_arrive_in_few_bits(kept: int) -> None:
    update = drawn(0, 3, CHUNK)
    update[1] *= 1e-20
    update[2] = 0
    message = encode(update, kept)
    assert message.dtype == torch.uint8
    assert len(message) == 3 * bytes_of_chunk(kept / CHUNK)
    expected = [oracle(row, kept) for row in update[:2].tolist()]
    expected.append([0.0] * CHUNK)
    torch.testing.assert_close(
        decoded(message, kept, 3),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_cb1_what_is_not_finite_is_not_hidden(bad: float) -> None:
    update = drawn(0, 2, CHUNK)
    update[0, 7] = bad
    found = decoded(encode(update, 3), 3, 2)
    assert not found[0].isfinite().all()
    assert found[1].isfinite().all()


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 600),
    blocks=st.integers(1, 6),
    keep=st.floats(0.001, 1, exclude_max=True),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_cb2_no_update_is_lost(
    size: int, blocks: int, keep: float, seed: int, dtype: torch.dtype
) -> None:
    """What has been sent and what is remembered add up to all updates."""
    replica = Replica.of(
        "local_sgd", Point([0.0] * size, dtype), partial(SGD, lr=0.1), 0, 1
    )
    params = replica.learner.params
    averaging = CompressedAverage(replica.learner, keep)
    updates = torch.zeros(size, dtype=torch.float64)
    for block in range(blocks):
        before = params.clone()
        params += drawn(seed + block, size).to(dtype)
        updates += params.double() - before.double()
        run(averaging.average(params, before.clone))
    rounding = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(
        params.double() + averaging.error.double(), updates, rtol=0, atol=rounding
    )


def test_cb3_local_sgd_is_its_equations() -> None:
    size, keep, period = 3, 0.02, 2
    found = replicas("local_sgd", size, period=period, keep=keep)
    start = drawn(99, SIZE)
    errors = torch.zeros(size, SIZE, dtype=torch.float64)
    for block in range(4):
        total = torch.zeros(SIZE, dtype=torch.float64)
        for rank in range(size):
            own = gradients(rank, period, block * period)
            a = errors[rank] - 0.1 * torch.tensor(own, dtype=torch.float64).sum(0)
            chunks = [chunk.tolist() for chunk in torch.split(a, CHUNK)]
            kept = kept_of_chunk(keep)
            values = [value for c in chunks for value in oracle(c, kept)]
            sent = torch.tensor(values, dtype=torch.float64)
            total += sent
            errors[rank] = a - sent
        start = start + total / size
        run(
            *(
                steps(r, gradients(r.learner.rank, period, block * period))
                for r in found
            )
        )
        for replica in found:
            torch.testing.assert_close(
                replica.learner.params, start, rtol=1e-12, atol=1e-12
            )
    for rank, replica in enumerate(found):
        state = replica.algorithm.state_dict()["fragments"][0]["compressed"]
        torch.testing.assert_close(state["error"], errors[rank], rtol=0, atol=1e-12)
        assert state["rank"] == rank


def steps(replica: Replica, own: Sequence[Sequence[float]]) -> Any:
    for gradient in own:
        yield from replica.step(gradient)


def error(replica: Replica) -> Tensor:
    found: Tensor = replica.algorithm.state_dict()["fragments"][0]["compressed"][
        "error"
    ]
    return found


def test_what_one_has_not_sent_is_not_sent_by_two() -> None:
    """Two learners go on as three; the new one begins with the state of learner 0."""
    two = replicas("local_sgd", 2, period=2, keep=0.02)
    run(*(r.epoch(gradients(r.learner.rank, 4)) for r in two))
    three = replicas("local_sgd", 3, period=2, keep=0.02)
    states = [saved(two[0]), saved(two[1]), saved(two[0])]
    for replica, state in zip(three, states, strict=True):
        load(replica, state)
    assert all(torch.equal(error(three[rank]), error(two[rank])) for rank in range(2))
    assert not error(three[2]).any()


def test_an_average_in_full_precision_goes_on_compressed_after_an_epoch() -> None:
    whole = replicas("local_sgd", 2, period=2)
    run(*(r.epoch(gradients(r.learner.rank, 4)) for r in whole))
    small = replicas("local_sgd", 2, period=2, keep=0.02)
    for replica, other in zip(small, whole, strict=True):
        load(replica, saved(other))
    run(*(r.epoch(gradients(r.learner.rank, 2)) for r in small))
    start = whole[0].learner.params
    moved = (small[0].learner.params - start).ne(0).sum()
    assert 0 < int(moved) <= 3 * 2 * kept_of_chunk(0.02)
    run(*(steps(r, gradients(r.learner.rank, 1)) for r in whole))
    with pytest.raises(InputError, match=r"within a block with .* keep: 1"):
        load(small[0], saved(whole[0]))


def virtual(
    name: str, size: int, share: int = 1, **options: Any
) -> list[VirtualLearner]:
    """Return learners; each has the mean of the gradients of `share` ranks."""

    def mean(rank: int, step: int) -> Tensor:
        ranks = range(rank * share, (rank + 1) * share)
        return torch.stack([drawn(1000 * r + step, SIZE) for r in ranks]).mean(0)

    start, options = drawn(99, SIZE).tolist(), METHODS[name] | options
    return points(name, size, along_each(mean), at=start, **options)


def test_cb7_the_bytes_of_a_block() -> None:
    assert math.ceil(SIZE / CHUNK) == 3
    learners = virtual("local_sgd", 4, period=2, keep=0.02)
    simulation = started(learners)
    before = [learner.bytes_sent for learner in learners]
    simulation.epoch(6)
    numbers = 4
    each = 3 * 3 * 12 + 2 * 8 * numbers * 3 // 4
    ending = 2 * 8 * numbers * 3 // 4  # All say that their epoch has ended.
    sent = [v.bytes_sent - b for v, b in zip(learners, before, strict=True)]
    assert sent == [3 * each + ending] * 4


def test_a_node_is_one_worker() -> None:
    nodes = virtual("local_sgd", 4, period=2, keep=0.02, per_node=2)
    workers = virtual("local_sgd", 2, share=2, period=2, keep=0.02)
    for learners in (nodes, workers):
        simulation = started(learners)
        simulation.epoch(6)
    for learner in nodes:
        assert torch.equal(learner.learner.params, nodes[0].learner.params)
    torch.testing.assert_close(
        nodes[0].learner.params, workers[0].learner.params, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("name", "conf", "words"),
    [
        ("local_sgd", {"keep": 0.0}, r"keep must be in \(0, 1\], not 0.0"),
        ("local_sgd", {"keep": 1.5}, r"keep must be in \(0, 1\], not 1.5"),
        ("local_sgd", {"keep": math.nan}, r"keep must be in \(0, 1\], not nan"),
        ("diloco", {"keep": 0.02, "delay": 2}, "keep: 0.02 needs delay: 0, not 2"),
        ("bmuf", {"keep": 0.02}, "needs moments: local or reset, not average"),
        ("bmuf_adam", {"keep": 0.1}, "needs moments: local or reset, not extrapolate"),
    ],
)
def test_what_cannot_be_sent_so_is_refused(
    name: str, conf: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check(name, conf, 4)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1000),
    chunks=st.integers(1, 5),
    kept=st.integers(1, 40),
    power=st.floats(0.1, 8),
)
def test_what_arrives_is_nearer_than_nothing(
    seed: int, chunks: int, kept: int, power: float
) -> None:
    """Error feedback needs this, also where a few values are far larger than others."""
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(chunks, kept, generator=source, dtype=torch.float64)
    values = values.sign() * values.abs() ** power
    whole = torch.nn.functional.pad(values, (0, CHUNK - kept))
    lost = (decoded(encode(whole, kept), kept, chunks) - whole).norm(dim=1)
    assert (lost <= 0.99 * values.norm(dim=1)).all()
