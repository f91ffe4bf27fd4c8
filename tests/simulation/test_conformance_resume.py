"""These tests check that both drivers agree on runs that stop and go on.

Real processes take items from a queue. They are stopped within an epoch, save their
states, and go on in new sessions. The simulation follows the recordings of all
sessions. The parameters are compared bit for bit.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import pytest
from processes import launch

from espnet_distopt.algorithms import ALGORITHMS
from tests.simulation.conformance import (
    Part,
    Training,
    check_equal,
    from_file,
)
from tests.simulation.conformance_real import real
from tests.simulation.conformance_simulated import simulated

QUEUE = 64
"""The number of items of an epoch: more than all learners train on before a stop."""

GOSSIP = [
    Training(
        name="adpsgd",
        options={},
        optimizer="adam",
        epochs=[QUEUE, 24],
        stops=True,
        pause=0.004,
        slow=4,
    ),
    Training(
        name="hadpsgd",
        options={"per_node": 2},
        optimizer="momentum",
        epochs=[QUEUE, 24],
        uneven=True,
        stops=True,
        pause=0.004,
        slow=4,
    ),
    # The second has ended its epoch when it is stopped. One epoch: of more, the
    # reference is a mean, which gloo sums in its own order.
    Training(
        name="adpsgd",
        options={"exchange": "bfloat16"},
        optimizer="momentum",
        epochs=[[16, 3, 20, 16]],
        stops=True,
        pause=0.004,
    ),
    Training(
        name="dpsgd",
        options={"topology": "randomized_ring"},
        optimizer="adam",
        epochs=[[16] * 4, [3] * 4],
        stops=True,
    ),
]
TOGETHER = [
    Training(
        name=name,
        options=options,
        optimizer="adam",
        epochs=[[24] * 2, [4] * 2],
        uneven=True,
        stops=True,
    )
    for name, entry in ALGORITHMS.items()
    if not entry.algorithm.wants_gossip
    for options in (
        [{"period": 3}, {"period": 3, "delay": 2}, {"period": 3, "per_node": 2}]
        + ([{"period": 3, "keep": 0.1}] if name == "local_sgd" else [])
        + (
            [{"period": 3, "delay": 2, "exchange": "bfloat16"}]
            if name == "bmuf_adam"
            else []
        )
        if hasattr(entry.config, "delay")
        else [{"period": 3}]
        if hasattr(entry.config, "period")
        else [{}]
    )
]


def all_real(trainings: Sequence[Training]) -> list[list[Part]]:
    return [real(training) for training in trainings]


@pytest.mark.parametrize(("size", "trainings"), [(4, GOSSIP), (2, TOGETHER)])
def test_a_stopped_run_goes_on_with_the_same_bits(
    size: int, trainings: list[Training]
) -> None:
    results = launch(size, all_real, trainings)
    for number, training in enumerate(trainings):
        parts = [result[number] for result in results]
        check_queue(training, parts)
        for rank, sessions in enumerate(simulated(training, parts)):
            for found, expected in zip(sessions, parts[rank], strict=True):
                assert found.params == expected.params, training
            check_states(parts[rank][0], sessions[0])


def check_queue(training: Training, parts: list[list[Part]]) -> None:
    """Check that the run was stopped, and that each item was trained on once."""
    first = [sessions[0].items[0] for sessions in parts]
    second = [sessions[1].items[0] for sessions in parts]
    assert any(second), "nothing was left for the second session"
    epoch = training.epochs[0]
    per_node = training.options.get("per_node", 1)
    if isinstance(epoch, int):
        taken = chain(*first[::per_node], *second[::per_node])
        assert Counter(taken) == Counter(range(epoch))
    else:
        both = [len(a) + len(b) for a, b in zip(first, second, strict=True)]
        assert both == list(epoch)


def check_states(real: Part, simulated: Part) -> None:
    """Check that what was saved at the stop is the same, under other names."""
    one, other = from_file(real.state), from_file(simulated.state)
    check_equal(one["learner"], other["learner"])
    check_equal(one["state"], other["algorithm"])
    check_equal(one["optimizer"], other["optimizer"])
