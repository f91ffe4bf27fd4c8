"""What holds for all five algorithms of blocks, with any of their options.

BM7, BM9, BH4, BH5, BH7, CB4 to CB6, FR2 and FR3 of docs/algorithms/block.md. Block
momentum sets in by itself within the first blocks.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.algorithms.block import filter as block_filter
from espnet_distopt.algorithms.block.bmuf import Bmuf
from espnet_distopt.optimizers.consistent import NOISE, SHARED
from espnet_distopt.simulation import Compute, Link, Network, Simulation, VirtualLearner
from tests.virtual import Stops, along_each, drawn, points, started

NAMES = ["bmuf", "bmuf_adam", "local_sgd", "slowmo", "diloco"]
SIZES = [5, 1, 300, 2]
PERIOD = 6
ADAM = partial(Adam, lr=0.1, betas=(0.9, 0.99))
MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"delay": 2},
    {"exchange": "bfloat16"},
    {"exchange": "bfloat16", "delay": 2},
    {"fragments": 3},
    {"fragments": 3, "delay": 1},
    {"fragments": 3, "delay": 1, "exchange": "bfloat16"},
    {"keep": 0.02},
    {"keep": 0.5, "fragments": 2},
    {"per_node": 2, "delay": 1},
]
"""With half of a chunk sent, the padding of the last one is among the largest."""


@pytest.fixture(autouse=True)
def horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_filter, "HORIZON", 10.0)


class Several(nn.Module):
    """A model of several vectors."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.arange(sum(SIZES), dtype=torch.float64).cos()
        self.parts = nn.ParameterList(part.clone() for part in values.split(SIZES))


def noisy(model: Several, rank: int) -> Callable[[int], float]:
    """The gradient is one direction, which turns round now and then, and noise."""

    def gradient(step: int) -> float:
        source = torch.Generator().manual_seed(1000 * rank + step)
        slope = torch.tensor(step / 5).cos()
        losses = []
        for part in model.parts:
            noise = torch.randn(len(part), generator=source, dtype=torch.float64)
            losses.append((part * (slope + 0.5 * noise)).sum())
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        return 0.0

    return gradient


def begun(name: str, size: int, make: Any, **options: Any) -> Simulation:
    if "keep" in options and name.startswith("bmuf"):
        options["moments"] = "local"
    learners = []
    for rank in range(size):
        model = Several()
        made, gradient = make(model.parameters()), noisy(model, rank)
        learner = VirtualLearner(
            model, made, gradient, name, rank, size, **{"period": PERIOD, **options}
        )
        learners.append(learner)
    network = Network(between=Link(latency=0.3))
    simulation = started(learners, Compute(spread=2.0), network)
    return simulation


def onsets(virtual: VirtualLearner) -> list[Any]:
    assert isinstance(virtual.algorithm, Bmuf)
    return [fragment.filter for fragment in virtual.algorithm.fragments]


def rule_of(virtual: VirtualLearner) -> Any:
    assert isinstance(virtual.algorithm, Bmuf)
    return virtual.algorithm.rule


def tensors(virtual: VirtualLearner, common: bool = False) -> list[torch.Tensor]:
    """The parameters, moments, and global models; `common`: what is not one's own."""
    found = [virtual.learner.params]
    if not common or rule_of(virtual).moments != "local":
        own = {NOISE, SHARED} if common else set()
        for state in virtual.optimizer.state_dict()["state"].values():
            found += [torch.as_tensor(v) for key, v in state.items() if key not in own]
    algorithm: Any = virtual.algorithm
    for fragment in algorithm.fragments:
        onset = torch.tensor([fragment.filter.agreeing, fragment.filter.rho])
        found += [fragment.filter.theta, fragment.filter.delta, onset]
    return [tensor.clone() for tensor in found]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, first, second)) and len(first) == len(second)


def test_the_families_are_all_here() -> None:
    assert [n for n, e in ALGORITHMS.items() if e.algorithm is Bmuf] == NAMES


@pytest.mark.parametrize("make", [ADAM, MOMENTUM])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_after_an_epoch_all_learners_have_the_same_bits(
    name: str, options: dict[str, Any], make: Any
) -> None:
    simulation = begun(name, 4, make, **options)
    epochs: list[Any] = [17, PERIOD, [5, 2, 8, 3], [0, 9, 4, 1], [6, 6, 1, 0], 15]
    if "per_node" in options:  # The learners of a node have equally many steps.
        epochs = [17, PERIOD, [5, 5, 2, 2], [0, 0, 9, 9], 15]
    seen = set()
    for steps in epochs:
        simulation.epoch(steps)
        seen |= {onset.agreeing for onset in onsets(simulation.learners[0])}
        first, *others = [tensors(v, common=True) for v in simulation.learners]
        assert all(same(first, other) for other in others)
    sets_in = getattr(ALGORITHMS[name].config, "warmup", 0) is None
    assert options or (len(seen) > 1) == sets_in


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_resumed_at_any_step_is_the_uninterrupted_one(
    name: str, options: dict[str, Any]
) -> None:
    make = MOMENTUM if "delay" in options else ADAM
    steps = 2 * PERIOD + 3
    size = 4 if "per_node" in options else 2
    whole = begun(name, size, make, **options)
    whole.epoch(steps)
    first = begun(name, size, make, **options)
    for cut in range(1, steps):
        first.epoch(1, pausing=True)
        resumed = begun(name, size, make, **options)
        resumed.load_state_dict(copy.deepcopy(first.state_dict()))
        if cut % 3 == 0:  # The run itself goes on from what it has saved, too.
            first = begun(name, size, make, **options)
            first.load_state_dict(copy.deepcopy(resumed.state_dict()))
        resumed.epoch(steps - cut)
        for mine, theirs in zip(resumed.learners, whole.learners, strict=True):
            assert same(tensors(mine), tensors(theirs)), cut


@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
@pytest.mark.parametrize("name", ["bmuf", "bmuf_adam", "local_sgd"])
def test_one_learner_is_the_plain_optimizer_bit_for_bit(
    name: str, options: dict[str, Any]
) -> None:
    simulation = begun(name, 1, ADAM, **options)
    simulation.epoch(20)
    alone = Several()
    optimizer, descend = ADAM(alone.parameters()), noisy(alone, 0)
    for step in range(20):
        optimizer.zero_grad()
        descend(step)
        optimizer.step()
    expected = nn.utils.parameters_to_vector(alone.parameters())
    assert torch.equal(simulation.learners[0].learner.params, expected)


@pytest.mark.parametrize("options", [o for o in OPTIONS if "per_node" not in o])
def test_learners_stop_where_nothing_is_under_way(options: dict[str, Any]) -> None:
    """Proposals of any learner, at any step, come after what others may have done."""
    stops, steps = Stops(), 5 * PERIOD
    simulation = begun("bmuf", 3, ADAM, **options)
    simulation.check = partial(stops.look, list(simulation.learners))
    simulation.epoch(steps)
    assert all(proposal >= already for proposal, already in stops.proposals)
    assert {p for p, _ in stops.proposals if p <= steps} <= stops.free


WORKERS, STEPS = 8, 400
GAIN: dict[str, tuple[float, dict[str, Any]]] = {
    "local_sgd": (1, {"second_moment": "local"}),
    "slowmo": (2, {"warmup": 0, "second_moment": "local"}),
    "diloco": (7, {"warmup": 0}),
    "bmuf_adam": (8, {"warmup": 0}),
}
"""Algorithm -> its gain among eight workers, and its options."""


def speed(name: str, size: int, batches: float = 1.0, **options: Any) -> float:
    """Return how far the mean goes in a step, in the second half of the steps.

    Learners see noise about the slope 0.2. The moments look back on 200 steps.

    Args:
        name: the algorithm.
        size: the number of learners.
        batches: the number of batches whose mean each gradient is.
        options: the algorithm's options.
    """
    gradients = along_each(
        lambda rank, step: 0.2 + drawn(1000 * step + rank, 1000) / batches**0.5
    )
    make = partial(Adam, lr=0.01, betas=(0.9, 0.995))
    simulation = started(points(name, size, gradients, make, [0.0] * 1000, **options))
    ends = []
    for _ in range(2):
        simulation.epoch(STEPS // 2)
        ends.append(-float(simulation.consensus().mean()))
    return (ends[1] - ends[0]) / (STEPS // 2)


@pytest.mark.parametrize("name", GAIN)
def test_bm8_a_block_is_gain_times_as_many_steps_of_one_worker(name: str) -> None:
    """Adam with N / gain batches, which it stands for, goes sqrt(N / gain) times."""
    gain, options = GAIN[name]
    found = speed(name, WORKERS, period=4, **options) / gain
    whole = speed("allreduce", 1, WORKERS / gain)
    print(f"| `{name}` | {gain} | {found:.5f} | {whole:.5f} |")
    assert found == pytest.approx(speed("allreduce", 1), rel=0.03)
    mu = 0.2**2
    expected = ((mu + 1) / (mu + gain / WORKERS)) ** 0.5
    assert whole / found == pytest.approx(expected, rel=0.05)
