"""These tests save a run, load it into new objects, and go on.

The result is that of the run that was not interrupted.
"""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import Compute, Link, Network, Simulation
from tests.virtual import noisy, points, x

STEPS = 5
MAKERS: dict[str, Callable[..., Any]] = {
    "momentum": partial(SGD, momentum=0.9),
    "adam": partial(Adam, betas=(0.5, 0.9)),
}
SYNCHRONOUS = [
    name for name in ALGORITHMS if not ALGORITHMS[name].algorithm.wants_gossip
]
LATE = [
    f"{name}, late"
    for name, entry in ALGORITHMS.items()
    if hasattr(entry.config, "delay")
]
ROUNDED = [
    f"{name}, rounded"
    for name, entry in ALGORITHMS.items()
    if hasattr(entry.config, "exchange")
]
TOPOLOGIES = ["adpsgd, randomized_ring", "dpsgd, randomized_ring"]
ANEW = {"dpsgd", "d1d_model", "d1d_grad"}
"""They begin again what was in flight, which gives the same numbers, but later."""


def cluster(title: str, make: str, size: int = 4) -> Simulation:
    name, _, variant = title.partition(", ")
    known = ALGORITHMS[name].config.__dataclass_fields__
    wanted: dict[str, Any] = {"period": 3, "max_staleness": 2}
    if variant in ("late", "rounded"):
        wanted |= {"delay": 2, "exchange": "bfloat16"}
    elif variant:
        wanted |= {"topology": variant}
    options = {key: value for key, value in wanted.items() if key in known}
    return Simulation(
        points(name, size, lambda model, _: noisy(model), MAKERS[make], **options),
        Compute(seconds=1, spread=0.5),
        Network(between=Link(latency=0.7), spread=0.5, loss=0.1, retry=1),
    )


def through_a_file(state: Any) -> Any:
    """Return a state from a file that may hold only tensors and plain values."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def outcome(simulation: Simulation) -> Any:
    mean = simulation.consensus().tolist()
    parameters = [x(virtual) for virtual in simulation.learners]
    return mean, parameters, simulation.seconds


def losses(simulation: Simulation, after: int) -> list[tuple[int, int, float]]:
    return sorted((s.rank, s.step, s.loss) for s in simulation.record[after:])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", [*ALGORITHMS, *LATE, *ROUNDED, *TOPOLOGIES])
def test_resumed_after_any_epoch(name: str, make: str) -> None:
    for k in range(STEPS + 1):
        plain = cluster(name, make)
        plain.start()
        plain.epoch(k)
        made = len(plain.record)
        state = through_a_file(plain.state_dict())
        plain.epoch(STEPS - k)

        resumed = cluster(name, make)
        resumed.load_state_dict(state)
        resumed.epoch(STEPS - k)
        if name.partition(", ")[0] in ANEW:
            assert losses(resumed, 0) == losses(plain, made), f"after {k} steps"
            assert outcome(resumed)[:2] == outcome(plain)[:2], f"after {k} steps"
        else:
            assert resumed.record == plain.record[made:], f"after {k} steps"
            assert outcome(resumed) == outcome(plain), f"after {k} steps"


def train(simulation: Simulation, steps: int, finish: bool) -> None:
    """Train for some steps, with the epoch's end or without it."""
    engine, compute = simulation.engine, simulation.compute
    if finish:
        programs = [v.epoch(steps, compute, 0) for v in simulation.learners]
    else:
        programs = [v.train(steps, compute, 0) for v in simulation.learners]
    engine.run(programs, lambda: None, in_epoch=True)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", [*SYNCHRONOUS, *LATE])
def test_resumed_in_the_middle_of_an_epoch(name: str, make: str) -> None:
    """Blocks have 3 steps, and an average that is in flight is begun again."""
    for k in range(STEPS + 1):
        plain = cluster(name, make)
        plain.start()
        train(plain, STEPS, finish=True)
        train(plain, 2, finish=True)

        first = cluster(name, make)
        first.start()
        train(first, k, finish=False)
        state = through_a_file(first.state_dict())
        resumed = cluster(name, make)
        resumed.load_state_dict(state)
        train(resumed, STEPS - k, finish=True)
        train(resumed, 2, finish=True)
        assert outcome(resumed)[:2] == outcome(plain)[:2], f"after {k} steps"


def test_a_state_is_a_copy() -> None:
    simulation = cluster("bmuf_adam", "adam")
    simulation.start()
    simulation.epoch(2)
    state = simulation.state_dict()
    kept = through_a_file(state)
    simulation.epoch(2)
    again = cluster("bmuf_adam", "adam")
    again.load_state_dict(state)
    other = cluster("bmuf_adam", "adam")
    other.load_state_dict(kept)
    again.epoch(2)
    other.epoch(2)
    assert outcome(again) == outcome(other)


def test_a_state_of_others_is_refused() -> None:
    state = cluster("adpsgd", "adam").state_dict()
    with pytest.raises(InputError, match="4 learners saved the state, not 2"):
        cluster("adpsgd", "adam", size=2).load_state_dict(state)
