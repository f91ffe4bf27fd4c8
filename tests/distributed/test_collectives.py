"""Each collective of the process-group driver between real processes.

Entries are whole numbers, so that sums are exact in whatever order.
"""

import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import launch
from torch import Tensor

from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Barrier,
    Begin,
    Broadcast,
    Effect,
    NeighbourAllGather,
    Program,
    Wait,
)
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import PeerLostError
from tests.sessions import perform

S = 1003


def vector(rank: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(-999, 999, (S,), generator=generator).float()


def rows(rank: int, size: int) -> Tensor:
    return torch.stack([vector(rank, seed) for seed in range(1, size + 1)])


def others(rank: int, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(other for other in ranks if other != rank)


def within(driver: ProcessGroupDriver, ranks: tuple[int, ...] | None) -> list[Any]:
    """Every collective of `ranks`; the results, and the bytes sent."""
    driver.spent.clear()
    rank, among = driver.rank, ranks or tuple(range(driver.size))
    effects: list[Effect] = [
        AllReduceMean(vector(rank), ranks),
        Broadcast(vector(rank), ranks),
        AllToAll(rows(rank, len(among)), ranks),
        AllGather(vector(rank), ranks),
        AllToAll(torch.empty(len(among), 0), ranks),  # a size-0 shard joins, too
        AllGather(torch.empty(0), ranks),
        NeighbourAllGather(vector(rank), others(rank, among)),
    ]
    results = [perform(driver, effect).tolist() for effect in effects]
    return [*results, driver.spent["bytes"]]


def expected(rank: int, ranks: Sequence[int]) -> list[Any]:
    place, size = list(ranks).index(rank), len(ranks)
    each = torch.stack([vector(r) for r in ranks])
    n = 4 * S
    sent = 2 * n * (size - 1) // size + n + (size - 1) * n * 3
    return [
        (each.sum(0) / size).tolist(),
        each[0].tolist(),
        [rows(r, size)[place].tolist() for r in ranks],
        each.tolist(),
        [[]] * size,
        [[]] * size,
        [vector(r).tolist() for r in others(rank, ranks)],
        sent if size > 1 else 0,
    ]


def groups(size: int) -> list[tuple[int, ...]]:
    """Among them a chain: its members have made unequal numbers of groups before."""
    chain = [(r, r + 1) for r in range(size - 1)]
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3)] if size == 4 else []
    return [*chain, *pairs, (0, size - 1), tuple(range(size)), (0,), (0, 1)]


def collectives() -> list[list[Any]]:
    driver = ProcessGroupDriver()
    mine = [g for g in groups(driver.size) if driver.rank in g]
    results = [within(driver, ranks) for ranks in [None, *mine]]
    driver.leave()
    return results


@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives_of_all_and_of_groups(size: int) -> None:
    everybody = tuple(range(size))
    for rank, results in enumerate(launch(size, collectives)):
        mine = [g for g in groups(size) if rank in g]
        for ranks, found in zip([everybody, *mine], results, strict=True):
            assert found == expected(rank, ranks), ranks


def flights(size: int) -> list[Any]:
    """Several collectives in flight, of which the first begun is the last waited for.

    Learner 0 begins and tells; only then do the others begin.
    """
    driver = ProcessGroupDriver()
    rank, store = driver.rank, dist.distributed_c10d._get_default_store()
    peers = others(rank, range(size))
    results: list[Tensor] = []

    def program() -> Program:
        if rank > 0:
            store.wait(["begun"])
        mean = yield Begin(AllReduceMean(vector(rank)))
        pair = yield Begin(AllReduceMean(vector(rank), (0, 1)) if rank < 2 else alone)
        first = yield Begin(NeighbourAllGather(vector(rank, 1), peers, into))
        second = yield Begin(NeighbourAllGather(vector(rank, 2), peers))
        if rank == 0:
            store.set("begun", "")
        results.append((yield AllReduceMean(vector(rank, 3))))
        for handle in (second, first, pair, mean):
            results.append((yield Wait(handle)))
        assert results[2] is into

    into = torch.empty(len(peers), S)
    alone = AllReduceMean(vector(rank), (rank,))
    if rank < 2:  # making a group is a meeting; that of a begun one is not at issue
        perform(driver, AllReduceMean(torch.zeros(1), (0, 1)))
    driver.run(program())
    driver.leave()
    return [result.tolist() for result in results]


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_that_overlap(size: int) -> None:
    everybody = range(size)

    def mean(seed: int, ranks: Sequence[int] = everybody) -> Any:
        return torch.stack([vector(r, seed) for r in ranks]).mean(0).tolist()

    for rank, found in enumerate(launch(size, flights, size, timeout=30)):
        sync, second, first, pair, all_ = found
        assert sync == mean(3)
        assert second == [vector(r, 2).tolist() for r in others(rank, everybody)]
        assert first == [vector(r, 1).tolist() for r in others(rank, everybody)]
        assert pair == mean(0, [0, 1] if rank < 2 else [rank])
        assert all_ == mean(0)


def test_one_process_needs_no_group() -> None:
    driver = ProcessGroupDriver()
    tensor = torch.tensor([-0.0, float("nan")])
    kept = tensor.numpy().tobytes()
    for effect in (AllReduceMean(tensor), Broadcast(tensor), AllReduceMean(tensor)):
        assert perform(driver, effect) is tensor
    handle = perform(driver, Begin(AllReduceMean(tensor)))
    assert perform(driver, Wait(handle)) is tensor
    assert perform(driver, AllGather(tensor)).shape == (1, 2)
    assert perform(driver, AllToAll(tensor[None])).shape == (1, 2)
    assert perform(driver, NeighbourAllGather(tensor, ())).shape == (0, 2)
    assert perform(driver, Barrier()).pausing is False
    driver.leave()
    assert tensor.numpy().tobytes() == kept
    assert not driver.spent
    assert not dist.is_initialized()


def in_another_group() -> str:
    driver = ProcessGroupDriver()
    with pytest.raises(RuntimeError) as caught:
        perform(driver, AllReduceMean(torch.zeros(1), (1 - driver.rank, 2)))
    driver.leave()
    return str(caught.value)


def test_a_collective_of_others_is_an_error_not_a_hang() -> None:
    results = launch(2, in_another_group, timeout=20)
    assert "learner 0 yields a collective of learners (1, 2)" in results[0]


def die_before_a_group_is_made() -> str:
    """Learner 3 dies, and the others make groups: two with it, two without it."""
    driver = ProcessGroupDriver(silence=3)
    rank, lost = driver.rank, None
    try:
        perform(driver, AllReduceMean(vector(rank)))
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        perform(driver, AllReduceMean(vector(rank), (0, 1) if rank < 2 else (2, 3)))
        perform(driver, AllReduceMean(vector(rank), (0, 1, 2, 3)))
    except PeerLostError as error:
        lost = error
    driver.leave(lost)
    return str(lost)


def test_a_learner_that_dies_before_a_group_is_made_is_named_by_all() -> None:
    for message in launch(4, die_before_a_group_is_made, timeout=40, dying=[3])[:3]:
        assert "learner 3 has died" in message
