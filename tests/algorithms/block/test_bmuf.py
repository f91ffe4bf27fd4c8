"""Block momentum: parameters, steps and state.

The vectors are BM1 to BM7 of docs/algorithms/block.md.
"""

import copy
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from espnet_distopt.errors import InputError
from tests.replicas import Point, Replica, end, filter_of, run, several

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(Adam, lr=0.01),
    "adamw": partial(AdamW, lr=0.01),
}
PLAIN = partial(SGD, lr=1.0)


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


class Net(nn.Module):
    """Two layers; the second head never gets a gradient."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(4, 5)
        self.head = nn.Linear(5, 2)
        self.idle = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


def learn(model: nn.Module, optimizer: Optimizer, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(3, 4, generator=generator)
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()


def steps(replica: Replica, count: int, start: int = 0) -> Any:
    for step in range(start, start + count):
        learn(replica.model, replica.optimizer, replica.learner.rank, step)
        replica.learner.steps += 1
        yield from replica.algorithm.after_step(replica.learner)


def nets(name: str, make: Make, size: int, **options: Any) -> list[Replica]:
    return several(name, Net, make, size, **options)


def points(name: str, x: list[float], size: int, **options: Any) -> list[Replica]:
    return several(name, lambda: Point(x), PLAIN, size, **options)


def theta_of(replica: Replica) -> float:
    return filter_of(replica.algorithm).theta.item()


def delta_of(replica: Replica) -> float:
    return filter_of(replica.algorithm).delta.item()


def rho_of(replica: Replica) -> float:
    return filter_of(replica.algorithm).rho


@pytest.mark.parametrize("period", [1, 3, 100])
@pytest.mark.parametrize("moments", ["average", "extrapolate", "local"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bm1_one_learner_is_the_plain_optimizer_bit_for_bit(
    optimizer: str, moments: str, period: int
) -> None:
    plain = Net()
    plain_optimizer = OPTIMIZERS[optimizer](plain.parameters())
    (replica,) = nets("bmuf", OPTIMIZERS[optimizer], 1, period=period, moments=moments)
    for step in range(7):
        learn(plain, plain_optimizer, 0, step)
    run(steps(replica, 7))
    end([replica])
    for mine, theirs in zip(
        replica.model.parameters(), plain.parameters(), strict=True
    ):
        assert bits(mine) == bits(theirs)
        for key, value in plain_optimizer.state[theirs].items():
            assert bits(replica.optimizer.state[mine][key]) == bits(value), key


def test_bm1_negative_zero_and_infinity_survive_a_block() -> None:
    (replica,) = points("bmuf", [-0.0, float("inf"), 1.0], 1, period=1)
    run(replica.step([0.0, 0.0, 0.0]))
    assert bits(replica.learner.params) == bits(
        torch.tensor([-0.0, float("inf"), 1.0], dtype=torch.float64)
    )


def test_bm2_period_1_without_momentum_is_synchronous_sgd() -> None:
    make = partial(SGD, lr=0.1)
    blocks = nets("bmuf", make, 4, period=1, momentum=0.0)
    run(*(steps(r, 6) for r in blocks))
    oracle = Net().double()
    optimizer = SGD(oracle.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        for rank in range(4):
            generator = torch.Generator().manual_seed(1000 * rank + step)
            x = torch.randn(3, 4, generator=generator).double()
            (oracle(x).square().sum() / 4).backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(oracle.parameters()).float()
    torch.testing.assert_close(blocks[0].learner.params, expected, rtol=1e-5, atol=1e-6)


def test_bm3_without_momentum_a_block_ends_at_the_mean() -> None:
    replicas = nets("bmuf", OPTIMIZERS["adam"], 3, period=4, momentum=0.0)
    alone = [Replica.of("bmuf", Net(), OPTIMIZERS["adam"]) for _ in range(3)]
    for rank, replica in enumerate(alone):
        for step in range(4):
            learn(replica.model, replica.optimizer, rank, step)
    run(*(steps(r, 4) for r in replicas))
    mean = torch.stack([r.learner.params.double() for r in alone]).mean(0).float()
    torch.testing.assert_close(replicas[0].learner.params, mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2, [8, 12, 14, 15, 15.5]),
        (8, [8, 15, 21.125, 26.484375, 31.173828]),
        (16, [8, 15.5, 22.53125, 29.123047, 35.302856]),
        (32, [8, 15.75, 23.257813, 30.531006, 37.576912]),
        (64, [8, 15.875, 23.626953, 31.257782, 38.769379]),
    ],
)
def test_bm4_equivalent_minibatches(size: int, expected: list[float]) -> None:
    replica = Replica.of("bmuf", Point([0.0]), PLAIN, 0, size)
    for rho in expected:
        for _ in range(8):
            run(replica.step([0.25]))
        assert rho_of(replica) == pytest.approx(rho, abs=5e-7)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("size", [8, 64])
def test_bm5_steady_progress_is_n_blocks_a_block(size: int, nesterov: bool) -> None:
    """15 and 127 would be a look-ahead counted twice; 1 a gain of 1 - eta."""
    options = {"period": 1, "nesterov": nesterov}
    replica = Replica.of("bmuf", Point([0.0]), PLAIN, 0, size, **options)
    eta = 1 - 1 / size
    for block in range(1, 40 * size):
        before = theta_of(replica)
        run(replica.step([-1.0]))
        if block < 6:
            delta = (1 - eta**block) / (1 - eta)
            assert delta_of(replica) == pytest.approx(delta, rel=1e-12)
        # All in all, a run does the work of N - 1 blocks less than N times its own.
        gone = size * (block - (size - 1) * (1 - eta**block))
        assert theta_of(replica) == pytest.approx(gone, rel=1e-9)
    assert theta_of(replica) - before == pytest.approx(size, rel=1e-9)
    (model,) = run(replica.algorithm.consensus(replica.learner))
    assert model.item() == theta_of(replica)
    lead = eta * size if nesterov else 0
    assert replica.x[0] - model.item() == pytest.approx(lead, rel=1e-9)


@pytest.mark.parametrize(
    ("zeta", "trace"),
    [
        (1.0, [(1, 1, 1.5), (0, 1, 1), (0.25, 1.25, 1.375), (0.125, 1.375, 1.4375)]),
        (
            0.5,
            [
                (0.5, 0.5, 0.75),
                (0, 0.5, 0.5),
                (0.125, 0.625, 0.6875),
                (0.0625, 0.6875, 0.71875),
            ],
        ),
    ],
)
@pytest.mark.parametrize("nesterov", [True, False])
def test_bm6_trace(
    zeta: float, trace: list[tuple[float, float, float]], nesterov: bool
) -> None:
    options = {"period": 1, "momentum": 0.5, "block_lr": zeta, "nesterov": nesterov}
    (replica,) = points("bmuf", [0.0], 1, **options)
    for displacement, (delta, theta, init) in zip(
        [1, -0.5, 0.25, 0], trace, strict=True
    ):
        run(replica.step([-displacement]))
        assert delta_of(replica) == delta
        assert theta_of(replica) == theta
        assert replica.x == [init if nesterov else theta]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("zeta", [1.0, 0.7])
def test_is_torch_sgd_on_the_block_update(zeta: float, nesterov: bool) -> None:
    options = {"momentum": 0.9, "block_lr": zeta, "nesterov": nesterov, "period": 2}
    replicas = points("bmuf", [1.0, -2.0], 2, **options)
    outer = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    sgd = SGD([outer], lr=zeta, momentum=0.9, nesterov=nesterov)
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        moves = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
        run(*(_two_steps(r, moves[r.learner.rank]) for r in replicas))
        outer.grad = moves.sum(1).mean(0)
        sgd.step()
        torch.testing.assert_close(
            replicas[0].learner.params, outer.detach(), rtol=0, atol=1e-12
        )


def _two_steps(replica: Replica, gradients: Tensor) -> Any:
    for gradient in gradients:
        yield from replica.step(gradient.tolist())


def test_bm7_the_order_of_learners_does_not_matter() -> None:
    results = []
    for order in itertools.permutations(range(3)):
        replicas = points("bmuf", [0.0, 1.0], 3, period=1)
        for step in range(4):
            run(*(r.step([order[i] + step, -order[i]]) for i, r in enumerate(replicas)))
        results.append(replicas[0].learner.params)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-12, atol=1e-12)


def test_bm7_uneven_data_ends_with_the_mean_step_count() -> None:
    replicas = points("bmuf", [0.0], 2, period=4, momentum=0.5)
    run(replicas[0].epoch([-1.0] * 10), replicas[1].epoch([-1.0] * 4))
    # blocks: (4, 4) steps, then (4, 0), then (2, 0)
    assert rho_of(replicas[0]) == 0.5 * (0.5 * 4 + 2) + 1
    assert delta_of(replicas[0]) == 0.5 * (0.5 * 4 + 2) + 1
    assert bits(replicas[0].learner.params) == bits(replicas[1].learner.params)
    assert all(r.algorithm.fragments[0].steps == 0 for r in replicas)  # type: ignore[attr-defined]


def test_skipped_updates_do_not_shift_the_blocks() -> None:
    replicas = points("bmuf", [0.0], 2, period=4, momentum=0.5)
    run(
        replicas[0].epoch([None, -1.0, None, -1.0, -1.0, -1.0, -1.0, -1.0]),
        replicas[1].epoch([-1.0] * 8),
    )
    assert rho_of(replicas[0]) == 0.5 * 3 + 4  # mean updates 3 of 4, then 4 of 4
    assert (replicas[0].learner.steps, replicas[0].learner.updates) == (8, 6)
    assert bits(replicas[0].learner.params) == bits(replicas[1].learner.params)


def test_a_block_without_any_update_is_not_filtered() -> None:
    replicas = points("bmuf", [0.0], 2, period=2)
    run(*(r.epoch([-1.0, -1.0, None, None]) for r in replicas))
    assert (rho_of(replicas[0]), delta_of(replicas[0])) == (2, 2)


def test_momentum_sets_in_after_the_warmup() -> None:
    (replica,) = points("bmuf", [0.0], 1, period=2, momentum=0.5, warmup=4)
    deltas = []
    for _ in range(4):
        run(_two_steps(replica, torch.tensor([[-1.0], [-1.0]])))
        deltas.append((delta_of(replica), rho_of(replica)))
    assert deltas == [(2, 2), (2, 2), (3, 3), (3.5, 3.5)]
    assert theta_of(replica) == 2 + 2 + 3 + 3.5


def test_short_blocks_are_a_part_of_the_warmup() -> None:
    """A block of an epoch's end, of 1 step, is not taken for one of 4."""
    replicas = points("bmuf", [0.0], 2, period=4, momentum=0.5, warmup=7)
    for _ in range(4):
        run(*(r.epoch([-1.0]) for r in replicas))
    deltas = []
    for _ in range(3):
        run(*(r.epoch([-1.0] * 4) for r in replicas))
        deltas.append(delta_of(replicas[0]))
    assert deltas == [4, 6, 7]


def after_blocks(size: int, blocks: int, more: int = 0) -> list[Replica]:
    """Return learners after blocks of two steps, in each of which all go on by 2."""
    replicas = points("bmuf", [0.0], size, period=2)
    for _ in range(blocks):
        run(*(_two_steps(r, torch.tensor([[-1.0], [-1.0]])) for r in replicas))
    for _ in range(more):
        run(*(r.step([-1.0]) for r in replicas))
    return replicas


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # Delta = (1 - 1/N) Delta + 2, with the N of each block; theta grows by Delta.
        pytest.param(4, 2, (2 + 3.5, 3.5 / 2 + 2), id="fewer"),
        pytest.param(2, 4, (2 + 3, 3 * 3 / 4 + 2), id="more"),
        pytest.param(1, 2, (2 + 2, 2), id="more than one"),
    ],
)
def test_block_momentum_goes_on_with_another_number_of_learners(
    before: int, after: int, expected: tuple[float, float]
) -> None:
    saved = after_blocks(before, 2)[0]
    theta, delta = expected
    resumed = points("bmuf", [0.0], after, period=2)
    for replica in resumed:
        replica.learner.load_state_dict(saved.learner.state_dict())
        replica.algorithm.load_state_dict(saved.algorithm.state_dict())
    run(*(_two_steps(r, torch.tensor([[-1.0], [-1.0]])) for r in resumed))
    for replica in resumed:
        assert delta_of(replica) == delta
        assert theta_of(replica) == theta + delta


def test_one_learner_goes_on_from_the_global_model_of_several() -> None:
    saved = after_blocks(2, 2)[0].algorithm.state_dict()
    (alone,) = points("bmuf", [7.0], 1, period=2)
    alone.algorithm.load_state_dict(saved)
    assert alone.learner.params.item() == 5


@pytest.mark.parametrize("other", [{"momentum": 0.5}, {"block_lr": 0.5}])
def test_a_filter_cannot_begin_within_a_block(other: dict[str, float]) -> None:
    """The learners would take the different models that they have for the start."""
    plain = {"momentum": 0.0, "block_lr": 1.0, "period": 2}
    replicas = points("bmuf", [0.0], 2, **plain)
    run(*(r.step([float(r.learner.rank)]) for r in replicas))
    within = [copy.deepcopy(r.algorithm.state_dict()) for r in replicas]
    run(*(r.step([1.0]) for r in replicas))
    filtered = points("bmuf", [0.0], 2, **(plain | other))
    for replica, plainly, state in zip(filtered, replicas, within, strict=True):
        with pytest.raises(InputError, match="momentum: 0 and block_lr: 1"):
            replica.algorithm.load_state_dict(state)
        replica.learner.load_state_dict(plainly.learner.state_dict())
        replica.algorithm.load_state_dict(plainly.algorithm.state_dict())
    run(*(_two_steps(r, torch.tensor([[1.0], [1.0]])) for r in filtered))
    assert filtered[0].x == filtered[1].x


@pytest.mark.parametrize("delay", [0, 1])
def test_a_filter_cannot_end_within_a_block(delay: int) -> None:
    """Without its start, what the learners have done in the block would be lost."""
    (replica, *_) = replicas = points("bmuf", [0.0], 2, period=2, delay=delay)
    run(*(r.step([float(r.learner.rank)]) for r in replicas))
    within = copy.deepcopy(replica.algorithm.state_dict())
    plain = points("bmuf", [0.0], 2, period=2, delay=delay, momentum=0.0)[0]
    with pytest.raises(InputError, match="within a block with block momentum"):
        plain.algorithm.load_state_dict(within)


def test_another_number_of_learners_is_refused_within_a_block() -> None:
    state = after_blocks(2, 1, more=1)[0].algorithm.state_dict()
    (alone,) = points("bmuf", [0.0], 1, period=2)
    with pytest.raises(InputError, match="within a block by 2 learners"):
        alone.algorithm.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(Adagrad, lr=0.1), "Adagrad are not known .* use moments: local"),
        (partial(Adam, lr=0.1, amsgrad=True), "use amsgrad: false"),
    ],
)
def test_unknown_moments_are_refused_unless_left_alone(make: Make, words: str) -> None:
    with pytest.raises(InputError, match=words):
        nets("bmuf", make, 2)
    replicas = nets("bmuf", make, 2, moments="local", period=2)
    run(*(steps(r, 2) for r in replicas))
    assert bits(replicas[0].learner.params) == bits(replicas[1].learner.params)
