"""All-to-all and all-gather in pieces, and work beside them, in real processes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from processes import launch
from torch import Tensor

from espnet_distopt.algorithms.adasum import AdasumExchange
from espnet_distopt.core.effects import AllGather, AllToAll
from espnet_distopt.core.learner import Learner
from espnet_distopt.distributed import messages
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from tests.algorithms.adasum_learners import Layers, distance, plain_sgd, tree_of_layers
from tests.sessions import perform

S = 1003
SIZE = 4
SIZES = [9000, 3, 1, 5000]


def rows(rank: int) -> Tensor:
    return 10_000 * rank + torch.arange(SIZE * S, dtype=torch.float64).view(SIZE, S)


def vectors() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, sum(SIZES), generator=generator)


def scatter(driver: ProcessGroupDriver, wide: Tensor, effect: AllToAll) -> list[int]:
    """Check what has arrived; return how much had, each time."""
    expected = torch.stack([rows(peer)[driver.rank] for peer in range(SIZE)])
    into, stops = wide[:, 5 : S + 5], []

    def arrived(stop: int) -> None:
        assert torch.equal(into[:, :stop], expected[:, :stop])
        stops.append(stop)

    result = perform(driver, replace(effect, into=into, arrived=arrived))
    assert result is into
    assert torch.equal(into, expected)
    return stops


def gather(driver: ProcessGroupDriver, wide: Tensor) -> list[int]:
    """Compute what is sent at the last moment, in the place where it belongs."""
    into, stops = wide[:, 5 : S + 5], [0]
    own = into[driver.rank]

    def prepare(stop: int) -> None:
        own[stops[-1] : stop] = rows(driver.rank)[0, stops[-1] : stop]
        stops.append(stop)

    result = perform(driver, AllGather(own, None, into, prepare))
    assert torch.equal(result, torch.stack([rows(peer)[0] for peer in range(SIZE)]))
    return stops[1:]


def in_pieces(length: int) -> list[Any]:
    driver = ProcessGroupDriver()
    messages.MESSAGE = 8 * length
    wide = torch.full((SIZE, S + 9), -1.0, dtype=torch.float64)
    stops = [scatter(driver, wide, AllToAll(rows(driver.rank)))]
    stops.append(gather(driver, wide.fill_(-1)))
    assert (wide[:, :5] == -1).all()
    assert (wide[:, S + 5 :] == -1).all()
    found = []
    for per_node in (1, 2):
        model = Layers(SIZES, torch.float32)
        learner = Learner(model, plain_sgd(model.parameters()), driver.rank, SIZE)
        vector = vectors()[driver.rank].clone()
        for part, combined in driver.run(AdasumExchange(learner, per_node)(vector)):
            vector[part] = combined
        found.append(vector.numpy())
    assert driver.spent["comm_time"] > 0
    driver.leave()
    return [stops, found]


@pytest.mark.parametrize("length", [100, 600, S])
def test_collectives_in_pieces_and_adasum_by_them(length: int) -> None:
    """Adasum has the same bits on all learners: 11 pieces, two, and one."""
    bounds = [*range(length, S, length), S]
    results = launch(SIZE, in_pieces, length)
    first = results[0][1]
    for stops, found in results:
        assert stops == [bounds, bounds]
        for vector, others in zip(found, first, strict=True):
            assert vector.tobytes() == others.tobytes()
    for per_node, vector in zip((1, 2), first, strict=True):
        means = list(vectors().double().view(-1, per_node, sum(SIZES)).mean(1))
        expected = tree_of_layers(means, SIZES)
        assert distance(torch.from_numpy(vector), expected) < 1e-7


class Link:
    """A group of learners whose messages are carried when somebody waits for them."""

    def __init__(self, own: int) -> None:
        self.own = own
        self.under_way: list[tuple[str, int]] = []
        self.order: list[int] = []

    def rank(self) -> int:
        return self.own

    def size(self) -> int:
        return SIZE

    def send(self, tensors: list[Tensor], target: int, tag: int) -> tuple[str, int]:
        return self._post("to", target)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> tuple[str, int]:
        return self._post("from", source)

    def complete(self, works: list[tuple[str, int]], on_gpu: bool) -> None:
        for work in works:
            self.under_way.remove(work)

    def _post(self, direction: str, peer: int) -> tuple[str, int]:
        others = {p for way, p in self.under_way if way == direction}
        assert others <= {peer}, f"a message {direction} {peer} meets those of {others}"
        self.under_way.append((direction, peer))
        if direction == "to" and peer not in self.order:
            self.order.append(peer)
        return direction, peer


@pytest.mark.parametrize("own", range(SIZE))
@pytest.mark.parametrize(
    ("collective", "sent", "distances"),
    [
        (messages.all_to_all, rows, range(1, SIZE)),
        (messages.all_gather, lambda own: rows(own)[0], [1]),
    ],
)
def test_a_link_carries_the_messages_of_one_learner_at_a_time(
    collective: Callable[..., None],
    sent: Callable[[int], Tensor],
    distances: Sequence[int],
    own: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An all-to-all takes turns, and an all-gather goes around a ring."""
    monkeypatch.setattr(messages, "MESSAGE", 8 * 100)
    link = Link(own)
    into = torch.zeros(SIZE, S, dtype=torch.float64)
    collective(link, sent(own), into, None, link.complete)
    assert link.order == [(own + distance) % SIZE for distance in distances]
    assert link.under_way == []
