"""These tests replay a recorded run under another clock, which gives the same bits."""

import json
from functools import partial
from typing import Any

import pytest
import torch

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    Simulation,
)
from tests.simulation.replay import ReplayEngine, ReplayError, record, recordings_of
from tests.virtual import noisy, points, published, started, x

EPOCHS: list[list[int]] = [[6, 6, 9, 9], [4, 4, 0, 0]]


def cluster(name: str, seed: int, **more: Any) -> Simulation:
    options = {"max_staleness": 2} if ALGORITHMS[name].algorithm.wants_gossip else {}
    simulation = started(
        points(name, 4, lambda model, _: noisy(model), **options),
        Compute(seconds=1, spread=1, seed=seed),
        Network(between=Link(latency=1.5), spread=1, loss=0.2, retry=2, seed=seed),
        **more,
    )
    return simulation


def epochs(name: str) -> list[list[int]]:
    return EPOCHS if ALGORITHMS[name].algorithm.wants_gossip else [[5] * 4, [3] * 4]


def recorded(name: str, seed: int = 0) -> tuple[Any, Simulation]:
    """Return a run and the recordings of its learners, after a round trip by a file."""
    simulation = cluster(name, seed)
    record(simulation)
    for steps in epochs(name):
        simulation.epoch(steps)
        simulation.consensus()
    text = json.loads(json.dumps(recordings_of(simulation)))
    return {int(rank): entries for rank, entries in text.items()}, simulation


def replayed(name: str, recordings: Any, seed: int = 1) -> Simulation:
    simulation = cluster(name, seed, engine_type=partial(ReplayEngine, recordings))
    for steps in epochs(name):
        simulation.epoch(steps)
        simulation.consensus()
    return simulation


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_replay_gives_the_same_bits(name: str) -> None:
    recordings, first = recorded(name)
    again = replayed(name, recordings)
    assert again.seconds != first.seconds
    for one, other in zip(first.learners, again.learners, strict=True):
        assert torch.equal(one.learner.params, other.learner.params)
        if again.learners[0].algorithm.wants_gossip:
            assert published(one).staleness == published(other).staleness


def test_a_permuted_recording_gives_other_bits_or_is_refused() -> None:
    recordings, first = recorded("adpsgd")
    expected = [x(virtual) for virtual in first.learners]
    other, refused = 0, 0
    for place in range(len(recordings[0]) - 1):
        entries = list(recordings[0])
        if entries[place] == entries[place + 1]:
            continue
        entries[place : place + 2] = entries[place + 1], entries[place]
        try:
            again = replayed("adpsgd", recordings | {0: entries})
            other += [x(virtual) for virtual in again.learners] != expected
        except ReplayError as error:
            assert "learner 0 cannot follow its recording at entry" in str(error)
            refused += 1
    assert other > 0
    assert refused > 0


def test_what_is_left_over_is_found() -> None:
    recordings, _ = recorded("adpsgd")
    simulation = replayed("adpsgd", recordings)
    engine: Any = simulation.engine
    engine.check_complete()
    more = recordings | {3: [*recordings[3], ["training", None]]}
    engine = replayed("adpsgd", more).engine
    with pytest.raises(ReplayError, match=r"learner 3 .* the epochs have ended"):
        engine.check_complete()


def test_a_recording_counts_the_sections_of_programs() -> None:
    """A step of allreduce has 3 sections (2 in after_backward), and `finish` has 2."""
    simulation = cluster("allreduce", 0)
    record(simulation)
    simulation.epoch(2)
    step = [("training", None)] * 3
    assert recordings_of(simulation) == {
        rank: [*step, *step, *[("training", None)] * 2] for rank in range(4)
    }


def test_gossip_of_a_learner_without_steps_begins_before_its_end() -> None:
    simulation = cluster("adpsgd", 0)
    record(simulation)
    simulation.epoch([3, 0, 3, 3])
    first, second, *_ = recordings_of(simulation)[1]
    assert (first, second) == (("gossip", None), ("training", None))
