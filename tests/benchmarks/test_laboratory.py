"""The laboratory computes what the simulation computes, algorithm by algorithm.

Both run in float64 on the same samples, with the same pairs and the same delays; what
they differ by is rounding, and so far below what any change of an equation does.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from convergence.stream_problems import Samples
from convergence.training import Training, learner_of
from laboratory import kernels, learners, methods, schedules
from laboratory.learners import Adam
from laboratory.noise import NoiseShares
from laboratory.problems import Perceptron
from laboratory.run import train_models
from torch import Tensor, nn

from espnet_distopt.simulation import Compute, Network, Simulation
from espnet_distopt.simulation.network import Link

SIZES = 6, 5, 3
STEPS = 50
CELL = Training(
    algorithm="allreduce", learners=4, batch=2, samples=2 * 4 * STEPS, lr=0.02, seed=3,
    optim="adam", problem="small", clip=0.9,
)  # fmt: skip
SLOW = Network(between=Link(latency=0.3, bandwidth=1e3))
"""An exchange lasts for one or two steps of its learners."""


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the laboratory work on two replicas at a time, of 53 parameters each."""
    monkeypatch.setattr(learners, "CHUNK", 110)


@functools.cache
def _all_samples(seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(2 * 8 * STEPS, SIZES[0], generator=source, dtype=torch.float64)


class Small:
    """A small network in float64, with random samples, for both."""

    def __init__(self) -> None:
        self._network = Perceptron(*SIZES)
        self.shapes = self._network.shapes
        self.gradients = self._network.gradients
        self.batch_size = 0

    def module(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            first, last = nn.Linear(*SIZES[:2]), nn.Linear(*SIZES[1:])
            return nn.Sequential(first, nn.Tanh(), last).double()

    def start(self, seed: int) -> Tensor:
        module = self.module(seed)
        return nn.utils.parameters_to_vector(module.parameters()).detach()

    def samples(self, seed: int, first: int, count: int) -> Samples:
        x = _all_samples(seed)[first : first + count]
        return x, (3 * x[:, 0]).long().abs() % SIZES[-1]

    def held_out_loss(self, x: Tensor) -> Tensor:
        return self._network.loss(x, self.samples(99, 0, 9))

    def replica(self, seed: int, rank: int, size: int) -> Any:
        model = self.module(seed)

        def gradient(step: int) -> float:
            first = (step * size + rank) * self.batch_size
            x, labels = self.samples(seed, first, self.batch_size)
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        return model, gradient


def simulated(
    cell: Training, network: Network | None = None
) -> tuple[Tensor, Tensor, list[schedules.Event]]:
    """Return the consensus model, all replicas, and the events of a gossip."""
    problem = Small()
    problem.batch_size = cell.batch
    virtual = [
        learner_of(cell, *problem.replica(cell.seed, r, cell.learners), r)
        for r in range(cell.learners)
    ]
    compute = Compute(seconds=1, spread=0.2, seed=cell.seed)
    simulation = Simulation(virtual, compute, network or Network(), seed=cell.seed)
    events: list[schedules.Event] = []
    if "adpsgd" in cell.algorithm:
        per_node = dict(cell.options).get("per_node", 1)
        events = schedules.Recorder(simulation, per_node).events
    simulation.start()
    simulation.epoch(cell.steps)
    consensus = simulation.consensus()
    return consensus, torch.stack([v.learner.params for v in virtual]), events


def distance(
    cell: Training,
    network: Network | None = None,
    change: Callable[[list[schedules.Event]], None] = lambda _: None,
) -> float:
    """Return how far the laboratory is from the simulation, relative to the training.

    A second training, at another rate and from another start, stands beside it.

    Args:
        cell: the training.
        network: how long the messages of the simulation take.
        change: function that changes the schedule before the laboratory has it.
    """
    consensus, replicas, events = simulated(cell, network)
    change(events)
    other = replace(cell, lr=cell.lr / 3, seed=cell.seed + 1)
    cells = [other, cell]
    recorded = {other.seed: simulated(other, network)[2], cell.seed: events}
    problem = Small()
    models, found = train_models(cells, problem, lambda each: recorded[each.seed])
    x = found.by_training(found.x)[1]
    every = len(replicas) // len(x)
    moved = float((consensus - problem.start(cell.seed)).norm())
    assert moved > 0.1
    off = [(models[1] - consensus).norm(), (x - replicas[::every]).norm(dim=1).max()]
    return float(max(off)) / moved


def cell(
    algorithm: str, optim: str = "adam", learners: int = 4, **options: Any
) -> Training:
    given = tuple(options.items())
    return replace(
        CELL, algorithm=algorithm, optim=optim, options=given, learners=learners,
        samples=2 * learners * STEPS,
    )  # fmt: skip


CELLS = [
    *(cell("allreduce", optim) for optim in ("sgd", "adam")),
    *(cell("d1d_grad", optim) for optim in ("sgd", "adam")),
    *(cell("d1d_model", optim) for optim in ("sgd", "adam")),
    cell("dpsgd", "sgd", learners=5),
    cell("dpsgd", topology="randomized_ring", learners=6),
    cell("dpsgd", topology="alternating", per_node=2, learners=8),
    cell("dpsgd", second_moment="local"),
    cell("adpsgd", "sgd", learners=5),
    cell("adpsgd", topology="random", learners=6),
    cell("adpsgd", topology="randomized_ring", learners=6, second_moment="local"),
    cell("hadpsgd", per_node=2, learners=6),
    cell("hadpsgd", "sgd", per_node=2, topology="random", learners=8),
    cell("local_sgd", "sgd", period=4),
    cell("local_sgd", period=7),
    cell("local_sgd", period=4, moments="average"),
    cell("local_sgd", period=4, moments="reset", second_moment="local"),
    *(cell("bmuf", optim, period=4) for optim in ("sgd", "adam")),
    cell("bmuf", "sgd", period=4, warmup=20, nesterov=False, momentum=0.5),
    cell("bmuf", period=4, warmup=9, nesterov=False, block_lr=0.8),
    *(cell("bmuf_adam", optim, period=4, warmup=12) for optim in ("sgd", "adam")),
    cell("bmuf_adam", period=4),
    *(cell(n, period=4, second_moment="consistent") for n in ("bmuf", "bmuf_adam")),
    cell("bmuf", period=4, warmup=20, block_lr=0.8, second_moment="consistent"),
    cell("bmuf_adam", period=4, warmup=0, momentum=0.5, second_moment="consistent"),
    replace(cell("bmuf_adam", period=8, warmup=0), beta1=0.5),
    cell("local_sgd", period=4, keep=0.05, second_moment="local"),
    cell("bmuf", "sgd", period=4, warmup=12, keep=0.02, moments="reset"),
    *(cell(n, period=4, exchange="bfloat16") for n in ("local_sgd", "bmuf_adam")),
    cell("local_sgd", period=4, exchange="bfloat16", moments="average"),
    cell("slowmo", period=4),
    cell("slowmo", period=4, warmup=0, moments="reset", second_moment="local"),
    cell("slowmo", period=4, warmup=12, moments="average"),
    cell("slowmo", "sgd", period=6, moments="local", block_lr=0.7),
    *(cell("diloco", optim, period=4) for optim in ("sgd", "adam")),
    cell("diloco", period=4, warmup=8),
    *(cell("adasum", optim, learners=5) for optim in ("sgd", "adam", "lamb")),
    cell("adasum", period=3),
]


def name(each: Training) -> str:
    options = "-".join(f"{k}={v}" for k, v in each.options)
    return f"{each.algorithm}-{each.optim}-{each.learners}-{options}"


@pytest.mark.parametrize("each", CELLS, ids=name)
def test_the_laboratory_equals_the_simulation(each: Training) -> None:
    assert distance(each) < 1e-9


@pytest.mark.parametrize("batch", [1, 4, 7, 8])
@pytest.mark.parametrize("sizes", [(6, 3), (6, 5, 3), (7, 9, 8, 4)])
def test_losses_and_gradients_are_those_of_torch(
    sizes: tuple[int, ...], batch: int
) -> None:
    source = torch.Generator().manual_seed(batch)
    network, rows = Perceptron(*sizes), torch.tensor([2, 0])
    cuts = [torch.Size(shape).numel() for shape in network.shapes]
    x = torch.randn(3, sum(cuts), generator=source, dtype=torch.float64)
    shape = 2, batch, sizes[0]
    inputs = torch.randn(shape, generator=source, dtype=torch.float64)
    labels = torch.randint(sizes[-1], shape[:2], generator=source)
    out = torch.full((2, sum(cuts)), float("nan"), dtype=torch.float64)
    losses = network.gradients(rows, x, (inputs, labels), out)
    for k, row in enumerate(rows):
        model = x[row].clone().requires_grad_()
        parts = model.split(cuts)
        layer = inputs[k]
        for n in range(0, len(parts), 2):
            weight = parts[n].view(network.shapes[n])
            layer = nn.functional.linear(layer, weight, parts[n + 1])
            layer = layer.tanh() if n + 2 < len(parts) else layer
        loss = nn.functional.cross_entropy(layer, labels[k])
        torch.testing.assert_close(losses[k], loss.detach())
        torch.testing.assert_close(out[k], *torch.autograd.grad(loss, model))
        alone = network.loss(x[row][None], (inputs[k], labels[k]))
        torch.testing.assert_close(alone, losses[k : k + 1])


@pytest.mark.parametrize("topology", ["ring", "random"])
def test_so_it_does_where_exchanges_last_for_steps(topology: str) -> None:
    gossip = cell("adpsgd", learners=6, topology=topology)
    _, _, events = simulated(gossip, SLOW)
    kept = [e for e in events if isinstance(e, schedules.Stepped) and e.kept]
    assert len(kept) > STEPS
    assert distance(gossip, SLOW) < 1e-9


def scaled(owner: Any, name: str) -> tuple[Any, str, Any]:
    """Return how to replace a function by one whose result is 1e-6 too large."""
    function = getattr(owner, name)
    return owner, name, lambda *args: function(*args) * (1 + 1e-6)


ring_means = kernels.ring_means


def uneven_ring(*args: Any) -> None:
    ring_means(*args)
    args[-1][0] *= 1 + 1e-6


WRONG = [
    (cell("dpsgd", "sgd"), (kernels, "ring_means", uneven_ring)),
    (cell("adpsgd"), scaled(NoiseShares, "deviations")),
    (cell("local_sgd"), (Adam, "EPS", 1.1e-8)),
    (cell("bmuf_adam", period=4, warmup=12), scaled(methods, "gain")),
    (cell("bmuf", period=4), (methods.Blocks, "HORIZON", 1000.01)),
    (cell("adasum"), scaled(methods, "combined")),
]


@pytest.mark.parametrize(("each", "wrong"), WRONG, ids=lambda each: str(each)[:12])
def test_a_coefficient_that_is_a_little_off_is_noticed(
    each: Training, wrong: tuple[Any, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*wrong)
    assert distance(each) > 1e-8


def test_an_exchange_that_is_missing_is_noticed() -> None:
    def without_one(events: list[schedules.Event]) -> None:
        begun = [n for n, e in enumerate(events) if isinstance(e, schedules.Begun)][40]
        pair = events.pop(begun)
        for rank in pair:
            del events[events.index(schedules.Ended(rank), begun)]

    assert distance(cell("adpsgd", "sgd"), change=without_one) > 1e-8
