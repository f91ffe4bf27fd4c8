"""These tests check that both drivers get the same parameters from the same schedule.

Real processes with random pauses record the order of their sections, and the simulation
follows the recordings. The parameters are compared bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from processes import launch

from espnet_distopt.algorithms import ALGORITHMS
from tests.simulation.conformance import OPTIMIZERS, Part, Training
from tests.simulation.conformance_real import real
from tests.simulation.conformance_simulated import simulated
from tests.simulation.replay import ReplayError

FOUR: list[Training] = [
    Training(
        name="adpsgd",
        options={"max_staleness": 2},
        optimizer="adam",
        epochs=[[12, 15, 9, 12], [0, 9, 11, 3]],
        pause=0.004,
    ),
    Training(
        name="hadpsgd",
        options={"per_node": 2},
        optimizer="momentum",
        epochs=[[12, 12, 7, 7], [6, 6, 9, 9]],
        pause=0.004,
    ),
    # There is one epoch. With more, the reference of bfloat16 is a mean, which gloo
    # sums in an order of its own.
    Training(
        name="adpsgd",
        options={"max_staleness": 2, "exchange": "bfloat16"},
        optimizer="momentum",
        epochs=[[15, 12, 9, 15]],
        pause=0.004,
    ),
]
RANDOM: list[Training] = [
    Training(
        name="adpsgd",
        options={"topology": "random"},
        optimizer="adam",
        epochs=[[9, 6, 12, 9, 9, 3, 9, 9, 9, 6], [3] * 10],
        uneven=True,
        pause=0.004,
    ),
    Training(
        name="hadpsgd",
        options={"topology": "random", "per_node": 2},
        optimizer="momentum",
        epochs=[[9, 9, 6, 6, 9, 9, 12, 12, 9, 9], [3] * 10],
        uneven=True,
        pause=0.004,
    ),
]
"""These trainings have ten learners or five nodes: among four, a ring has all pairs of
an active and a passive learner."""
GOSSIP = {training.name for training in FOUR}


def options_of(name: str, config: type[Any], size: int) -> list[dict[str, Any]]:
    """Return the options of `name` with which `size` learners talk to each other."""
    if name == "dpsgd":
        names = ("ring", "randomized_ring", "complete")
        nodes = {"topology": "alternating", "per_node": 2}
        return [*({"topology": name} for name in names), nodes]
    if not hasattr(config, "period"):
        return [{}]
    others = [{"delay": 2}, {"per_node": 2}] if hasattr(config, "delay") else []
    others += [{"keep": 0.1}] if name == "local_sgd" else []
    if name in ("bmuf_adam", "local_sgd") and size == 2:
        # Of more learners, gloo adds the roundings in an order of its own.
        others += [{"exchange": "bfloat16"}, {"exchange": "bfloat16", "delay": 2}]
    return [{"period": 3, **other} for other in [{}, *others]]


def together(size: int, optimizer: str) -> list[Training]:
    """Return the schedule of learners that step together.

    The numbers of steps differ between nodes where the algorithm allows it.
    """
    return [
        Training(
            name=name,
            options=options,
            optimizer=optimizer,
            epochs=[
                [7 + rank // options.get("per_node", 1) for rank in range(size)],
                [4] * size,
            ]
            if "period" in options
            else [[7] * size, [4] * size],
            uneven=True,
        )
        for name, entry in ALGORITHMS.items()
        if name not in GOSSIP
        for options in options_of(name, entry.config, size)
    ]


def all_real(trainings: Sequence[Training]) -> list[Part]:
    return [real(training)[0] for training in trainings]


def parameters(training: Training, parts: Sequence[Part]) -> list[list[float]]:
    """Return those of each virtual learner."""
    return [part.params for [part] in simulated(training, [[part] for part in parts])]


@pytest.mark.parametrize(("size", "trainings"), [(4, FOUR), (10, RANDOM)])
def test_the_recorded_schedule_gives_the_same_bits(
    size: int, trainings: list[Training]
) -> None:
    results = launch(size, all_real, trainings)
    for number, training in enumerate(trainings):
        parts = [result[number] for result in results]
        check_exchanges(training, parts)
        found = [part for [part] in simulated(training, [[part] for part in parts])]
        assert [p.params for p in found] == [p.params for p in parts], training
        assert [p.sent for p in found] == [p.sent for p in parts], training


def check_exchanges(training: Training, parts: Sequence[Part]) -> None:
    """Check that there were some, and between learners that only this topology has."""
    per_node = training.options.get("per_node", 1)
    distances = {
        (value - rank) // per_node % (len(parts) // per_node)
        for rank, part in enumerate(parts)
        for side, value in part.record
        if side == "gossip" and type(value) is int
    }
    assert distances
    if "topology" in training.options:
        assert distances - {1, len(parts) // per_node - 1}


def swaps(parts: Sequence[Part], rank: int) -> list[list[Part]]:
    """Return recordings in which two neighbouring entries of a learner are swapped."""
    permuted = []
    entries = parts[rank].record
    for at in range(len(entries) - 1):
        if entries[at] != entries[at + 1]:
            swapped = [*entries]
            swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
            other = [*parts]
            other[rank] = parts[rank]._replace(record=swapped)
            permuted.append(other)
    return permuted


def test_a_permuted_recording_does_not_give_the_same_bits() -> None:
    """At least one swap gives a schedule that can run and leads to other parameters.

    Without pauses that is so of 10 to 20 swaps; with those of 4 ms, of 2 or 3.
    """
    training = Training(
        name="adpsgd",
        options={"from_consensus": True},  # of two: gloo sums more in its own order
        optimizer="momentum",
        epochs=[[60, 60], [16, 16]],
    )
    parts = [part for [part] in launch(2, all_real, [training])]
    expected = [part.params for part in parts]
    assert parameters(training, parts) == expected
    # The passive learner comes first, because more of its swaps can run.
    for permuted in [*swaps(parts, 1), *swaps(parts, 0)]:
        try:
            found = parameters(training, permuted)
        except (ReplayError, AssertionError):
            continue
        if found != expected:
            return
    pytest.fail("no permutation of the recording made a difference")


@pytest.mark.parametrize("size", [2, 4])
def test_learners_that_step_together_need_no_recording(size: int) -> None:
    """Two learners have one order of sums; with four, gloo chooses an order of its own.

    Where nothing but neighbours' messages is summed, so does each learner itself.
    """
    # Adam turns a difference in the last bit of a small gradient into a whole step.
    optimizers = OPTIMIZERS if size == 2 else ["momentum"]
    trainings = [t for optimizer in optimizers for t in together(size, optimizer)]
    results = launch(size, all_real, trainings)
    for number, training in enumerate(trainings):
        parts = [result[number] for result in results]
        virtual = simulated(training, [[part] for part in parts], follow=False)
        assert [p.sent for [p] in virtual] == [p.sent for p in parts], training
        found = torch.tensor([part.params for part in parts])
        expected = torch.tensor([part.params for [part] in virtual])
        if size == 2 or "ring" in training.options.get("topology", ""):
            assert torch.equal(found, expected), training
        else:
            scale = float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * scale)
