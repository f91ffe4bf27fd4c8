"""D-PSGD, and what delay by one shares with it.

The vectors are SD1 to SD6 and D5 of docs/algorithms/synchronous.md.
"""

import copy
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import check
from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.algorithms.synchronous.dpsgd import Dpsgd, DpsgdConfig
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.mixing import Topology, mixing_matrix
from espnet_distopt.errors import InputError
from espnet_distopt.simulation import (
    Compute,
    Link,
    Network,
    Simulation,
    VirtualLearner,
)
from tests.replicas import Point
from tests.virtual import (
    along,
    along_each,
    bowls,
    noisy,
    points,
    started,
    towards_rank,
    x,
)

TOPOLOGIES: list[Topology] = ["ring", "randomized_ring", "complete"]
"""Those that take any number of learners."""
DELAYED: list[tuple[str, dict[str, Any]]] = [
    *(("dpsgd", {"topology": topology, "seed": 5}) for topology in TOPOLOGIES),
    ("d1d_model", {}),
    ("d1d_grad", {}),
]
delayed = pytest.mark.parametrize(
    ("name", "options"),
    DELAYED,
    ids=[
        f"{name}-{options.get('topology', '')}".strip("-") for name, options in DELAYED
    ],
)


def place(learners: Sequence[VirtualLearner], starts: Sequence[float]) -> None:
    for virtual, start in zip(learners, starts, strict=True):
        virtual.learner.params.fill_(start)
        virtual.algorithm.load_state_dict(virtual.algorithm.state_dict())


def simulate(
    starts: Sequence[float],
    gradients: Sequence[Sequence[float]],
    epochs: Sequence[int],
    lr: float = 0.1,
    algorithm: Callable[[VirtualLearner], Dpsgd] | None = None,
    **options: Any,
) -> list[list[float]]:
    """Return the learners' places after each epoch; `gradients` of each learner."""
    along_own = along_each(lambda rank, step: gradients[rank][step])
    learners = points("dpsgd", len(starts), along_own, partial(SGD, lr=lr), **options)
    for virtual in learners:
        if algorithm is not None:
            virtual.algorithm = algorithm(virtual)
    simulation = started(learners, Compute(spread=0.5))
    place(learners, starts)
    trace = []
    for steps in epochs:
        simulation.epoch(steps)
        trace.append([x(virtual)[0] for virtual in learners])
    return trace


# Vectors


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [([0.0] * 4, [4, 3, 6, 5]), ([1.0, 2.0, 3.0, 4.0], [3.9, 2.8, 5.7, 4.6])],
)
def test_sd2_ring(gradients: list[float], expected: list[float]) -> None:
    """The average alone, and with the gradient at the own model."""
    (final,) = simulate([0, 3, 6, 9], [[gradient] for gradient in gradients], [1])
    assert final == pytest.approx(expected, abs=1e-12)


class AlternatingPairs(Dpsgd):
    """Mixes in rounds (01)(23) and (03)(12)."""

    def row(self, k: int) -> dict[int, float]:
        partner = self._rank ^ 1 if k % 2 == 0 else 3 - self._rank
        return {self._rank: 0.5, partner: 0.5}


def in_pairs(virtual: VirtualLearner) -> Dpsgd:
    return AlternatingPairs(DpsgdConfig(topology="ring"), virtual.learner)


def test_sd4_alternating_pairs() -> None:
    gradients = [[rank + 1.0] * 4 for rank in range(4)]
    trace = simulate([0] * 4, gradients, [1] * 4, algorithm=in_pairs)
    expected = [
        [-0.1, -0.2, -0.3, -0.4],
        [-0.35, -0.45, -0.55, -0.65],
        [-0.5, -0.6, -0.9, -1.0],
        [-0.85, -0.95, -1.05, -1.15],
    ]
    np.testing.assert_allclose(trace, expected, atol=1e-12)


@given(
    st.sampled_from(TOPOLOGIES),
    st.integers(1, 7),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_every_step_is_that_of_the_mixing_matrix(
    topology: Topology, size: int, epochs: list[int], seed: int
) -> None:
    """X_{k+1} = W_k X_k - lr G_k; and so SD1, the mean's identity."""
    source = np.random.default_rng(seed)
    starts = source.uniform(-1, 1, size)
    gradients = source.uniform(-1, 1, (size, sum(epochs)))
    trace = simulate(
        starts.tolist(), gradients.tolist(), epochs, topology=topology, seed=seed
    )
    expected = starts
    done = 0
    for steps, places in zip(epochs, trace, strict=True):
        for k in range(done, done + steps):
            mixed = mixing_matrix(topology, size, k, seed) @ expected
            expected = mixed - 0.1 * gradients[:, k]
        done += steps
        np.testing.assert_allclose(places, expected, rtol=0, atol=1e-12)
        mean = starts.mean() - 0.1 * gradients[:, :done].mean(0).sum()
        assert np.mean(places) == pytest.approx(mean, abs=1e-12)


# Curved losses


def descend(
    shapes: Sequence[tuple[float, float]],
    lr: float,
    steps: int,
    starts: Sequence[float] | None = None,
    **options: Any,
) -> list[float]:
    make = partial(SGD, lr=lr)
    learners = points("dpsgd", len(shapes), bowls(*shapes), make, **options)
    simulation = started(learners)
    place(learners, starts or [0.0] * len(shapes))
    simulation.epoch(steps)
    return [x(virtual)[0] for virtual in learners]


def test_sd6_bias_of_a_constant_rate_on_unequal_curvature() -> None:
    final = descend([(1, 0), (3, 1)], lr=0.1, steps=200, topology="complete")
    assert final == pytest.approx([15 / 23, 18 / 23], abs=1e-12)
    assert np.mean(final) == pytest.approx(0.7173913043, abs=1e-10)


@pytest.mark.parametrize("topology", ["ring", "complete"])
def test_sd6_fixed_point_of_many(topology: Topology) -> None:
    """(I - W + lr H) x = lr H b, whose mean is not the optimum."""
    curvatures, bottoms = [1.0, 2.0, 1.5, 0.8, 1.2], [0.3, -1.0, 2.0, 0.5, -0.7]
    shapes = list(zip(curvatures, bottoms, strict=True))
    final = descend(shapes, 0.2, 100, topology=topology)
    pull = 0.2 * np.diag(curvatures)
    system = np.eye(5) - mixing_matrix(topology, 5) + pull
    expected = np.linalg.solve(system, pull @ bottoms)
    np.testing.assert_allclose(final, expected, atol=1e-9)
    optimum = np.average(bottoms, weights=curvatures)
    assert abs(np.mean(final) - optimum) > 1e-3


@pytest.mark.parametrize(
    ("topology", "limit"),
    [("ring", 2 / 3), ("complete", 1.0)],
    ids=["ring", "complete"],
)
def test_stability_bound(topology: Topology, limit: float) -> None:
    """Neighbours that disagree (lambda = -1/3) are the first to diverge; or anybody."""
    starts = [1.0, -1.0] * 2
    sizes = [
        max(map(abs, descend([(1, 0)] * 4, lr, 60, starts, topology=topology)))
        for lr in (limit - 0.03, limit + 0.03)
    ]
    assert sizes[0] < 0.2
    assert sizes[1] > 5


@pytest.mark.parametrize(
    ("topology", "size", "expected"),
    [("ring", 4, 0.8438), ("ring", 8, 1.3862), ("complete", 4, 3 / 4)],
)
def test_stationary_disagreement(
    topology: Topology, size: int, expected: float
) -> None:
    """E ||X - xbar||^2 / N in units of (lr s)^2; D5 for the complete graph."""
    noise, start = lambda model, _: noisy(model), [0.0] * 20000
    learners = points("dpsgd", size, noise, SGD, start, topology=topology)
    simulation = started(learners)
    simulation.epoch(25)
    replicas = torch.stack([v.learner.params for v in learners])
    variance = (replicas - replicas.mean(0)).square().mean()
    assert float(variance) / 0.1**2 == pytest.approx(expected, rel=0.03)


# Epochs, states


def wild(model: Point, rank: int) -> Callable[[int], float]:
    """Given gradients, different for each learner and step."""
    source = np.random.default_rng(rank)
    return along(model, source.uniform(-1, 1, 40).tolist())


def training(name: str, size: int = 5, **options: Any) -> Simulation:
    simulation = started(points(name, size, wild, Adam, **options))
    return simulation


def replicas(simulation: Simulation) -> list[list[float]]:
    return [x(virtual) for virtual in simulation.learners]


@delayed
@pytest.mark.parametrize("epochs", [[3, 0, 5, 1, 1], [0, 10], [1] * 10])
def test_how_steps_are_cut_into_epochs_changes_no_bit(
    name: str, options: dict[str, Any], epochs: list[int]
) -> None:
    whole, cut = (training(name, **options) for _ in range(2))
    whole.epoch(10)
    for steps in epochs:
        cut.epoch(steps)
        cut.consensus()
    assert replicas(cut) == replicas(whole)


@delayed
def test_time_changes_no_bit(name: str, options: dict[str, Any]) -> None:
    even, uneven = (training(name, **options) for _ in range(2))
    uneven.compute = Compute(spread=1)
    uneven.network = Network(between=Link(latency=0.4), spread=1)
    for simulation in (even, uneven):
        simulation.epoch(8)
    assert replicas(even) == replicas(uneven)


def unfinished(simulation: Simulation) -> None:
    """Let epochs end as if somebody looked between two of their steps."""
    for virtual in simulation.learners:
        virtual.algorithm.finish = lambda _: iter(())  # type: ignore[method-assign,assignment,return-value]


def resumed(simulation: Simulation, name: str, **options: Any) -> Simulation:
    fresh = training(name, len(simulation.learners), **options)
    fresh.load_state_dict(copy.deepcopy(simulation.state_dict()))
    return fresh


@delayed
@pytest.mark.parametrize("finished", [True, False])
def test_resume_at_every_step_is_the_uninterrupted_run(
    name: str, options: dict[str, Any], finished: bool
) -> None:
    whole = training(name, **options)
    whole.epoch(9)
    simulation = training(name, **options)
    for step in range(9):
        if not finished:
            unfinished(simulation)
        simulation.epoch(1)
        simulation = resumed(simulation, name, **options)
        assert simulation.learners[0].learner.steps == step + 1
    assert replicas(simulation) == replicas(whole)


@delayed
@pytest.mark.parametrize("lost", [0, 2])
def test_a_learner_without_a_saved_state_joins(
    name: str, options: dict[str, Any], lost: int
) -> None:
    simulation = training(name, **options)
    simulation.epoch(3)
    fresh = training(name, **options)
    for virtual, saved in zip(fresh.learners, simulation.learners, strict=True):
        if virtual.learner.rank != lost:
            virtual.learner.load_state_dict(saved.learner.state_dict())
            virtual.algorithm.load_state_dict(saved.algorithm.state_dict())
    fresh.epoch(4)
    fresh.epoch(2)
    assert {v.learner.steps - 6 for v in fresh.learners} == {0, 3}


# Unequal numbers of steps


class Watched(VirtualLearner):
    """Keeps the error that ends its epoch, and leaves the others running."""

    error: UnequalStepsError | None = None

    def epoch(self, *arguments: Any) -> Generator[Any, Any, None]:
        try:
            yield from super().epoch(*arguments)
        except UnequalStepsError as error:
            self.error = error


@given(
    st.sampled_from(DELAYED),
    st.lists(st.integers(0, 3), min_size=2, max_size=6).filter(lambda n: len({*n}) > 1),
    st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_unequal_steps_are_an_error_before_anybody_waits_for_ever(
    algorithm: tuple[str, dict[str, Any]], steps: list[int], before: int
) -> None:
    """A deadlock would be another error."""
    name, options = algorithm
    simulation = training(name, len(steps), **options)
    simulation.epoch(before)
    with pytest.raises(UnequalStepsError, match="unequal numbers of steps"):
        simulation.epoch(steps)


@delayed
@pytest.mark.parametrize("steps", [[2, 3], [3, 0], [4, 4, 3], [1, 9]])
def test_neighbours_hear_of_unequal_steps_on_both_sides(
    name: str, options: dict[str, Any], steps: list[int]
) -> None:
    simulation = training(name, len(steps), **options)
    for virtual in simulation.learners:
        virtual.__class__ = Watched
    simulation.epoch(steps)
    for virtual, mine in zip(simulation.learners, steps, strict=True):
        assert isinstance(virtual, Watched)
        assert virtual.error is not None
        words = "this learner has" if mine == min(steps) else "another learner has"
        assert words in str(virtual.error)


# Cost


def test_communication_is_hidden_behind_the_gradient() -> None:
    """After the first step of a run, which has nothing to hide it behind."""
    network = Network(between=Link(latency=0.2, bandwidth=8 * 3 / 0.3))
    times = {}
    for name in ("dpsgd", "d1d_model"):
        simulation = started(points(name, 3, towards_rank), Compute(seconds=2), network)
        simulation.epoch(4)
        seconds = [s.seconds for s in simulation.record if s.rank == 0]
        times[name] = [b - a for a, b in pairwise(seconds)]
    assert times["dpsgd"] == pytest.approx([2.0] * 3, abs=1e-8)
    assert times["d1d_model"] == pytest.approx([2.0] * 3, abs=1e-8)


@pytest.mark.parametrize(
    ("topology", "size", "messages"),
    [("ring", 5, 2), ("ring", 2, 1), ("randomized_ring", 5, 2), ("complete", 4, 1.5)],
)
def test_bytes(topology: Topology, size: int, messages: float) -> None:
    """Of an epoch of 5 steps: one mixing each, and the one that ends the epoch.

    A message has the 2 parameters, as many moments to compare, and a count.
    """
    simulation = training("dpsgd", size, topology=topology)
    simulation.epoch(2)
    for virtual in simulation.learners:
        virtual.metrics()
    simulation.epoch(5)
    message = 8 * (2 + 2 + 1)
    for virtual in simulation.learners:
        assert virtual.metrics()["bytes"] == 6 * messages * message


@pytest.mark.parametrize(("size", "topology"), [(16, "ring"), (17, "randomized_ring")])
def test_a_long_ring_in_fixed_order_is_not_the_default(
    size: int, topology: Topology
) -> None:
    by_default: Any = training("dpsgd", size).learners[3].algorithm
    given: Any = training("dpsgd", size, topology=topology).learners[3].algorithm
    rows = [[a.row(k) for k in range(9)] for a in (by_default, given)]
    assert rows[0] == rows[1]
    assert by_default.topology == topology


def test_unknown_topologies_are_refused() -> None:
    with pytest.raises(InputError, match="topology must be one of ring, randomized"):
        check("dpsgd", {"topology": "torus"}, 4)


# Alternating exponential ring


@pytest.mark.parametrize(("size", "per_node"), [(8, 2), (4, 4), (4, 1)])
def test_alternating_steps_are_those_of_the_mixing_matrices(
    size: int, per_node: int
) -> None:
    source = np.random.default_rng(size)
    expected = source.uniform(-1, 1, size)
    gradients = source.uniform(-1, 1, (size, 7))
    options: dict[str, Any] = {"topology": "alternating", "per_node": per_node}
    trace = simulate(expected.tolist(), gradients.tolist(), [3, 4], **options)
    for k in range(7):
        matrix = mixing_matrix("alternating", size, k, per_node=per_node)
        expected = matrix @ expected - 0.1 * gradients[:, k]
        if k == 2:
            np.testing.assert_allclose(trace[0], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(trace[1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("size", "per_node", "words"),
    [
        (6, 2, "3 nodes make no alternating exponential ring"),
        (6, 4, "6 learners do not make nodes of per_node = 4"),
        (6, 0, "per_node must be >= 1"),
    ],
)
def test_nodes_that_make_no_alternating_ring_are_refused(
    size: int, per_node: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check("dpsgd", {"topology": "alternating", "per_node": per_node}, size)


def test_the_launcher_may_say_how_many_learners_a_node_has() -> None:
    model = Point([0.0])
    optimizer = SGD(model.parameters(), lr=0.1)
    config = DpsgdConfig(topology="alternating")
    known = Learner(model, optimizer, 1, 8, per_node=4)
    assert list(Dpsgd(config, known).group(0) or ()) == [0, 1, 2, 3]
    for per_node, words in ((None, "set per_node"), (3, "nodes of 3"), (8, "")):
        unknown = Learner(Point([0.0]), SGD(Point([0.0]).parameters()), 1, 8, per_node)
        if words:
            with pytest.raises(InputError, match=words):
                Dpsgd(config, unknown)
        else:
            assert len(Dpsgd(config, unknown).group(1) or ()) == 8


# Unequal numbers of steps where the neighbours change from round to round

CHANGING: list[tuple[int, dict[str, Any]]] = [
    (4, {"topology": "alternating", "per_node": 1}),
    (8, {"topology": "alternating", "per_node": 2}),
]


@given(st.sampled_from(CHANGING), st.data(), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_who_never_meets_whom_has_ended_still_hears_of_it(
    case: tuple[int, dict[str, Any]], data: st.DataObject, before: int
) -> None:
    """In one round alone, those with 2 steps may all meet each other, as 0 and 2."""
    size, options = case
    some = st.lists(st.integers(2, 4), min_size=size, max_size=size)
    steps = data.draw(some.filter(lambda n: len({*n}) > 1))
    simulation = training("dpsgd", size, **options)
    simulation.epoch(before)
    with pytest.raises(UnequalStepsError, match="unequal numbers of steps"):
        simulation.epoch(steps)


@pytest.mark.parametrize("steps", [[2, 3, 2, 3], [2, 2, 2, 2, 3, 3, 3, 3]])
def test_pairs_that_end_together_do_not_hide_unequal_steps(steps: list[int]) -> None:
    """The next round's pairs have ended both, or neither has."""
    with pytest.raises(UnequalStepsError):
        training("dpsgd", len(steps), topology="alternating", per_node=1).epoch(steps)


@pytest.mark.parametrize(("size", "options"), CHANGING)
def test_nobody_passes_the_next_stop(size: int, options: dict[str, Any]) -> None:
    """However long a step of one learner takes, the others cannot run ahead."""
    for slow in range(size):
        simulation = training("dpsgd", size, **options)
        simulation.compute = Compute(slowdown={slow: 1000.0})
        last: Any = simulation.learners[slow].algorithm
        over: list[int] = []

        def look(
            running: Simulation, slow: int = slow, last: Any = last, over: Any = over
        ) -> None:
            learners = [virtual.learner for virtual in running.learners]
            stop = last.next_stop(learners[slow])
            over.append(max(learner.steps for learner in learners) - stop)

        simulation.check = look
        simulation.epoch(12)
        assert max(over) <= 0
