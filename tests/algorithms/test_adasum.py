"""Training with Adasum: steps, uneven data, state, refusals.

The vectors are AS12 to AS14 of docs/algorithms/adasum.md.
"""

import io
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import adasum as algorithm
from espnet_distopt.algorithms import build, check
from espnet_distopt.algorithms.adasum import SHORT, Shard, coefficients, cut
from espnet_distopt.core.learner import Slot
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.lamb import Lamb
from espnet_distopt.simulation import VirtualLearner
from tests.algorithms.adasum_learners import (
    Layers,
    Make,
    adasum,
    distance,
    same_bits,
    tree,
    tree_of_layers,
)
from tests.virtual import started

SIZES = [3, 1, 6]
OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "adam": partial(Adam, lr=0.05),
    "lamb": partial(Lamb, lr=0.05, weight_decay=0.1),
}


def targets(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(sum(SIZES), generator=generator, dtype=torch.float64)


def pull(model: Layers, rank: int) -> Callable[[int], float]:
    """Gradient of a quadratic; learner 1's never reach the second tensor."""

    def gradient(step: int) -> float:
        parts = zip(model.layers, targets(rank, step).split(SIZES), strict=True)
        losses = [(x - target).square().sum() / 2 for x, target in parts]
        if rank == 1:
            del losses[1]
        loss = torch.stack(losses).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return gradient


def layers() -> Layers:
    model = Layers(SIZES, torch.float64)
    with torch.no_grad():
        for x, start in zip(model.layers, targets(99, 0).split(SIZES), strict=True):
            x.copy_(start)
    return model


def virtual(make: Make, size: int, **options: Any) -> list[VirtualLearner]:
    learners = []
    for rank in range(size):
        model = layers()
        parts = model, make(model.parameters()), pull(model, rank)
        learners.append(VirtualLearner(*parts, "adasum", rank, size, **options))
    return learners


def train(
    learners: list[VirtualLearner], *epochs: Sequence[int] | int
) -> list[VirtualLearner]:
    simulation = started(learners)
    for counts in epochs:
        simulation.epoch(counts)
        consensus = simulation.consensus()
        for v in learners:
            assert same_bits(v.learner.params, consensus)
    return learners


class Plain:
    """A model that trains without the package."""

    def __init__(self, make: Make, rank: int) -> None:
        self.model = layers()
        self.optimizer = make(self.model.parameters())
        self.gradient = pull(self.model, rank)
        self.steps = 0

    def flat(self) -> Tensor:
        return torch.cat([x.detach().flatten() for x in self.model.layers])

    def write(self, flat: Tensor) -> None:
        with torch.no_grad():
            for x, part in zip(self.model.layers, flat.split(SIZES), strict=True):
                x.copy_(part)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.gradient(self.steps)
        self.optimizer.step()
        self.steps += 1


def oracle(
    make: Make,
    epochs: Sequence[Sequence[int]],
    period: int = 1,
    per_node: int = 1,
) -> Tensor:
    """Local steps, then the tree on float64 updates of tensors."""
    size = len(epochs[0])
    models = [Plain(make, rank) for rank in range(size)]
    shared = models[0].flat()
    for counts in epochs:
        left = list(counts)
        while any(left):
            updates = []
            for rank, model in enumerate(models):
                for _ in range(min(period, left[rank])):
                    model.step()
                left[rank] -= min(period, left[rank])
                updates.append(model.flat() - shared)
            nodes = torch.stack(updates).view(-1, per_node, sum(SIZES)).mean(1)
            shared = shared + tree_of_layers(list(nodes), SIZES)
            for model in models:
                model.write(shared)
    return shared


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("size", "per_node", "period", "epochs"),
    [
        (2, 1, 1, [[5, 5]]),
        (3, 1, 1, [[4, 4, 4], [3, 3, 3]]),
        (4, 1, 3, [[7] * 4, [3] * 4]),
        (4, 2, 1, [[5] * 4]),
        (6, 3, 2, [[5] * 6, [2] * 6]),
        (4, 4, 1, [[5] * 4]),
        (4, 1, 2, [[7, 0, 3, 9], [1, 8, 2, 2]]),
        (6, 2, 3, [[4, 4, 0, 0, 9, 1]]),
    ],
)
def test_training_is_local_steps_and_the_tree_of_updates(
    optimizer: str, size: int, per_node: int, period: int, epochs: list[list[int]]
) -> None:
    """AS13, AS14; uneven data neither hang nor pull towards those that have ended."""
    make = OPTIMIZERS[optimizer]
    learners = train(virtual(make, size, period=period, per_node=per_node), *epochs)
    expected = oracle(make, epochs, period, per_node)
    assert distance(learners[0].learner.params, expected) < 1e-12


def test_as12_optimizers_keep_their_own_state() -> None:
    learners = train(virtual(OPTIMIZERS["adam"], 2), 5)
    first, second = (
        v.optimizer.state[v.learner.parameters[0]]["exp_avg"] for v in learners
    )
    assert not torch.allclose(first, second)


def test_a_skipped_update_changes_nothing() -> None:
    """A learner whose step is skipped, as a NaN would make it, adds a zero update."""
    learners = virtual(OPTIMIZERS["adam"], 2)
    learners[1].optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    (first, _) = train(learners, 4)
    alone = Plain(OPTIMIZERS["adam"], 0)
    for _ in range(4):
        alone.step()
    assert distance(first.learner.params, alone.flat()) < 1e-15


@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resume_at_every_step_is_the_uninterrupted_run(
    optimizer: str, period: int
) -> None:
    """Before each step everything is lost but what was saved after the one before."""

    def interrupted(v: VirtualLearner, gradient: Callable[[int], float]) -> Any:
        def resume_first(step: int) -> float:
            states = v.learner, v.algorithm, v.optimizer
            file = io.BytesIO()
            torch.save([s.state_dict() for s in states], file)
            v.learner.params.fill_(torch.nan)
            v.learner.steps = v.learner.updates = -1
            v.optimizer.state.clear()
            fresh = build("adasum", {"period": period}, v.learner)
            v.algorithm.__dict__.update(fresh.__dict__)
            file.seek(0)
            for s, saved in zip(states, torch.load(file, weights_only=True)):  # noqa: B905
                s.load_state_dict(saved)
            return gradient(step)

        return resume_first

    make, epochs = OPTIMIZERS[optimizer], ([5, 4, 4], [2, 5, 0])
    whole = train(virtual(make, 3, period=period), *epochs)
    learners = virtual(make, 3, period=period)
    for v in learners:
        v.gradient = interrupted(v, v.gradient)
    train(learners, *epochs)
    assert same_bits(learners[0].learner.params, whole[0].learner.params)


def test_cost() -> None:
    """What the module says: 2n(N-1)/N, and half a Gram matrix for each tensor."""
    size, elements = 5, sum(SIZES)
    learners = virtual(OPTIMIZERS["sgd"], size)
    simulation = started(learners)
    learners[0].metrics()
    simulation.epoch([1, 1, 1, 1, 1])
    numbers = elements + len(SIZES) * size * (size + 1) // 2 + 2 + 2
    expected = 8 * 2 * numbers * (size - 1) // size
    assert learners[0].metrics()["bytes"] == pytest.approx(expected, abs=6)


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"period": 0}, 2, "period must be >= 1, not 0"),
    ({"per_node": 0}, 2, "per_node must be >= 1, not 0"),
    ({"per_node": 4}, 6, "6 learners do not fill nodes of per_node: 4"),
    ({"per_node": 4}, 2, "2 learners do not fill nodes of per_node: 4"),
]


@pytest.mark.parametrize(("options", "size", "words"), WRONG)
def test_what_cannot_run_is_refused(
    options: dict[str, Any], size: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check("adasum", options, size)


RANKS = [(1.0, 0.0), (1.0, 1.0), (0.0, 2.0), (-1.0, 1.0), (2.0, 1.0), (1.0, -1.0)]


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_as1_identical_vectors_give_that_vector_exactly(
    size: int, dtype: torch.dtype
) -> None:
    vector = normal(0, 37, dtype=dtype)
    assert same_bits(adasum([vector] * size, [5, 1, 31]), vector)


@pytest.mark.parametrize(("a", "b"), [(1, 3), (-2, 7), (1e-6, 1e6), (5, -1e-3)])
def test_as3_collinear_vectors_are_averaged(a: float, b: float) -> None:
    vector = normal(1, 9)
    result = adasum([a * vector, b * vector])
    assert distance(result, (a + b) / 2 * vector) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [1, 2, 7, 100, 70_000])
def test_as3_opposite_vectors_cancel_exactly(length: int, dtype: torch.dtype) -> None:
    vector = normal(2, length, dtype=dtype)
    assert not adasum([vector, -vector]).any()
    other = normal(3, length, dtype=dtype)
    assert distance(adasum([vector, -vector, other, other]), other.double()) < 1e-15


def test_as4_zero_vectors_change_nothing() -> None:
    vector, zero = normal(4, 9), torch.zeros(9, dtype=torch.float64)
    for place in range(5):
        vectors = [vector if rank == place else zero for rank in range(5)]
        assert torch.equal(adasum(vectors, [4, 5]), vector)
    assert torch.equal(adasum([zero] * 5), zero)


def test_as5_a_pair_commutes_bit_for_bit() -> None:
    for seed in range(20):
        a, b = normal(seed, 2, 33)
        assert same_bits(adasum([a, b], [3, 30]), adasum([b, a], [3, 30]))


def test_as6_length_and_direction_of_20000_pairs() -> None:
    pairs = normal(8, 20_000, 2, 3) * 10 ** normal(9, 20_000, 2, 1)
    c = coefficients(pairs @ pairs.mT)
    r = (c.unsqueeze(2) * pairs).sum(1)
    a, b = pairs.unbind(1)
    length_a, length_b = a.norm(dim=1), b.norm(dim=1)
    cos = (a * b).sum(1) / (length_a * length_b)
    squares = length_a**2 + length_b**2
    expected = squares * (1 - 0.75 * cos**2) + cos**3 * length_a * length_b / 2
    assert ((r * r).sum(1) - expected).abs().div(squares).max() < 1e-12
    assert (expected <= squares * (1 + 1e-12)).all()
    along_a = length_a**2 * (1 - cos**2 / 2) + cos * length_a * length_b / 2
    assert ((r * a).sum(1) - along_a).abs().div(squares).max() < 1e-12
    assert (along_a < 0).any()
    assert ((r * (a + b)).sum(1) > 0).all()


def ranks(*order: int) -> list[tuple[float, ...]]:
    return [RANKS[rank] for rank in order]


VECTORS: dict[str, tuple[list[tuple[float, ...]], list[int], list[float], float]] = {
    "AS2": ([*map(tuple, torch.eye(6).tolist())], [6], [1.0] * 6, 0),
    "AS6": ([(1, 0), (0.5, 0.75**0.5)], [2], [1.125, 0.64951905], 1e-8),
    "AS7": ([(1, 2, 3), (4, -5, 6)], [3], [328 / 77, -267 / 77, 558 / 77], 1e-12),
    "AS8": (ranks(0, 1, 2, 3), [2], [37 / 68, 325 / 136], 1e-12),
    "AS8, first pair": (ranks(0, 1), [2], [1.25, 0.75], 1e-12),
    "AS8, second pair": (ranks(2, 3), [2], [-0.5, 2], 1e-12),
    "AS8, another order": (ranks(0, 2, 1, 3), [2], [0.6, 2.2], 1e-12),
    "AS9, three": (ranks(0, 1, 2), [2], [55 / 68, 287 / 136], 1e-12),
    "AS9, five": (ranks(0, 1, 2, 3, 4), [2], [1.69100608, 2.35008631], 1e-8),
    "AS9, six": (ranks(0, 1, 2, 3, 4, 5), [2], [2.67387581, 2.17233519], 1e-8),
    "AS10": ([(1, 0, 1, 1), (0, 1, 1, 1)], [2, 2], [1, 1, 1, 1], 0),
    "AS10, one": ([(1, 0, 1, 1), (0, 1, 1, 1)], [4], [2 / 3] * 2 + [4 / 3] * 2, 1e-12),
}
"""The learners' vectors, the sizes of tensors, the result, and its relative error."""


@pytest.mark.parametrize("name", VECTORS)
def test_published_vectors(name: str) -> None:
    """The order of ranks belongs to it, and each tensor has its own coefficients."""
    vectors, sizes, expected, tolerance = VECTORS[name]
    found = adasum([torch.tensor(v, dtype=torch.float64) for v in vectors], sizes)
    assert found.tolist() == pytest.approx(expected, rel=tolerance, abs=0)


def test_as11_extreme_lengths() -> None:
    for scale in (
        torch.finfo(torch.float32).tiny,
        torch.finfo(torch.float32).max ** 0.5,
    ):
        a = torch.tensor([1.0, 2.0, -1.0]) * scale
        assert distance(adasum([a, 3 * a]), (2 * a).double()) < 1e-7
    below = torch.full((1,), 1e-80, dtype=torch.float64)
    assert adasum([below, below]).item() == 2e-80
    above = torch.full((1,), 1.5e-77, dtype=torch.float64)
    assert torch.equal(adasum([above] * 8), above)


PRECISION = {torch.float64: 5e-16, torch.float32: 6e-8, torch.float16: 4.9e-4}


@pytest.mark.parametrize("dtype", PRECISION)
def test_precision_is_that_of_one_rounding(dtype: torch.dtype) -> None:
    vectors = list(normal(12, 4, 500, dtype=dtype))
    error = distance(adasum(vectors), tree(vectors))
    assert error < PRECISION[dtype]


sizes_of_tensors = st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(2, 17),
    sizes=sizes_of_tensors,
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_gram_matrices_give_what_the_tree_does(
    size: int, sizes: list[int], seed: int, dtype: torch.dtype
) -> None:
    """Any packing: tensors of one element, cut ones, shards of nothing but padding."""
    vectors = list(normal(seed, size, sum(sizes), dtype=dtype))
    remainders: list[float] = []
    expected = tree_of_layers(vectors, sizes, remainders)
    worst = min(remainders)
    assume(worst > 1e-3)  # see the test of near cancellation
    rounding = 6e-8 if dtype is torch.float32 else 0
    limit = 1e-12 + 1e-14 / worst**2 + rounding
    assert distance(adasum(vectors, sizes), expected) < limit


@settings(max_examples=30, deadline=None)
@given(
    nodes=st.integers(1, 5),
    per_node=st.integers(1, 4),
    sizes=sizes_of_tensors,
    seed=st.integers(0, 10**6),
)
def test_as13_nodes_average_before_adasum(
    nodes: int, per_node: int, sizes: list[int], seed: int
) -> None:
    """With one node it is the mean; with learners alone on nodes, full Adasum."""
    vectors = normal(seed, nodes * per_node, sum(sizes))
    means = list(vectors.view(nodes, per_node, -1).mean(1))
    remainders = [1.0]
    expected = tree_of_layers(means, sizes, remainders)
    assume(min(remainders) > 1e-3)
    result = adasum(list(vectors), sizes, per_node=per_node)
    assert distance(result, expected) < 1e-12 + 1e-14 / min(remainders) ** 2
    if per_node == 1:
        assert torch.equal(result, adasum(list(vectors), sizes))


def cancelling(left: float) -> list[Tensor]:
    """Two vectors that cancel but for `left` of their length, and two more."""
    g, h, *more = normal(13, 4, 40)
    h = h * left * g.norm() / h.norm()
    return [g, h - g, *more]


@pytest.mark.parametrize(
    ("left", "limit"), [(2e-2, 1e-12), (2e-4, 1e-8), (2e-5, 1e-6), (4e-6, 1e-4)]
)
def test_near_cancellation_costs_digits(left: float, limit: float) -> None:
    vectors = cancelling(left)
    assert distance(adasum(vectors), tree(vectors)) < limit


@pytest.mark.parametrize("left", [1e-6, 1e-7, 1e-8, 1e-10, 1e-13])
def test_below_3e_6_what_is_left_counts_as_zero(left: float) -> None:
    vectors = cancelling(left)
    as_if = tree([torch.zeros_like(vectors[0]), *vectors[2:]])
    assert distance(adasum(vectors), as_if) < 10 * left + 1e-12


CPU = torch.device("cpu")
WIDTHS = [SHORT + 5, 3, 0, 1, 2 * SHORT, 40, 7]


def slots(sizes: Sequence[int]) -> list[Slot]:
    stops = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [Slot(a, b, torch.Size([b - a]), 0) for a, b in pairwise(stops)]


def test_chunks_go_with_the_elements_not_the_tensors() -> None:
    assert len(cut(slots([10] * 10_000), 0, 100_000, 4, CPU)) <= 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [2, 5])
def test_a_shard_that_arrives_in_pieces(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No column is seen before it is there; a second exchange begins anew."""
    monkeypatch.setattr(algorithm, "CHUNK", 8 * size * 1000)
    start, stop = 100, sum(WIDTHS) - 3
    chunks = cut(slots(WIDTHS), start, stop, size, CPU)
    shard = Shard(torch.empty(size, stop - start, dtype=dtype), chunks, len(WIDTHS))
    c = normal(9, len(WIDTHS), size)
    for seed in (1, 2):
        vectors = normal(seed, size, sum(WIDTHS), dtype=dtype)
        shard.block.fill_(torch.nan)
        shard.begin()
        result = torch.full((stop - start,), torch.nan, dtype=dtype)
        for there in range(0, stop - start + 700, 700):
            shard.block[:, :there] = vectors[:, start : start + there][
                :, : stop - start
            ]
            shard.see(min(there, stop - start))
        for there in range(700, stop - start + 700, 700):
            shard.combine(c, result, min(there, stop - start))
            assert result[:there].isfinite().all()
        for tensor, slot in enumerate(slots(WIDTHS)):
            first, last = max(slot.start, start), min(slot.stop, stop)
            rows = vectors[:, first:last].double()
            expected = rows @ rows.T
            assert torch.allclose(shard.matrices[tensor], expected, 1e-12, 1e-11)
            sums = (c[tensor].unsqueeze(1) * rows).sum(0)
            found = result[first - start : last - start].double()
            tolerance = 1e-12 if dtype is torch.float64 else 6e-8
            assert torch.allclose(found, sums, tolerance, 1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("size", "per_node"), [(2, 1), (5, 1), (4, 2)])
def test_adasum_of_long_and_short_tensors(
    size: int, per_node: int, dtype: torch.dtype
) -> None:
    vectors = normal(3, size, sum(WIDTHS), dtype=dtype)
    means = vectors.double().view(size // per_node, per_node, -1).mean(1)
    expected = tree_of_layers(list(means), WIDTHS)
    found = adasum(list(vectors), WIDTHS, per_node=per_node)
    rounding = {torch.float64: 1e-14, torch.float32: 1e-7, torch.float16: 1e-3}[dtype]
    assert distance(found, expected) < rounding


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_long_vectors_that_cancel_leave_nothing(dtype: torch.dtype) -> None:
    a, b = normal(4, 2, 3 * SHORT, dtype=dtype)
    assert not adasum([a, -a]).any()
    assert not adasum([a, -a, b, -b]).any()
    assert torch.equal(adasum([a, -a, b, b]), b)
