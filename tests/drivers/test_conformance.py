"""Both drivers run the same algorithms: the same schedule gives the same parameters.

Real processes with random pauses record the order of their sections; the simulation
follows the recordings. Compared bit for bit.
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from processes import launch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.drivers.process_group import ProcessGroupDriver
from espnet_distopt.drivers.simulation import Simulation, VirtualLearner
from espnet_distopt.drivers.simulation.replay import Entry, ReplayError
from espnet_distopt.session import Session

Recordings = dict[int, list[Entry]]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": partial(Adam, lr=0.05),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
}
GOSSIP: dict[str, dict[str, Any]] = {
    "adpsgd": {"max_staleness": 2},
    "hadpsgd": {"per_node": 2},
}
TOGETHER: list[tuple[str, dict[str, Any]]] = [
    (name, {"period": 3} if hasattr(config, "period") else {})
    for name, (_, config) in ALGORITHMS.items()
    if name not in GOSSIP
]
TOGETHER += [
    (name, {"period": 3, "delay": 2})
    for name, (_, config) in ALGORITHMS.items()
    if hasattr(config, "delay")
]


class Net(nn.Module):
    """A small recurrent model of 4 outputs a frame."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(3, 5)
        self.out = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.rnn(x)[0]
        out: Tensor = self.out(hidden)
        return out


def gradient(model: nn.Module, rank: int) -> Callable[[int], float]:
    """Each learner and step has a batch of its own, of 7 frames of 2 utterances."""

    def backward(step: int) -> float:
        data = torch.Generator().manual_seed(1000 * rank + step)
        x = torch.randn(7, 2, 3, generator=data)
        y = torch.randint(4, (14,), generator=data)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return backward


Epochs = Sequence[Sequence[int]]
"""For each epoch the steps of each learner."""


def real(
    name: str, options: dict[str, Any], optimizer: str, epochs: Epochs, pause: float
) -> tuple[list[float], list[Entry] | None]:
    """Train in this process; returns the parameters and the recording."""
    model = Net()
    made = OPTIMIZERS[optimizer](model.parameters())
    driver = ProcessGroupDriver(recording=True)
    pauses = random.Random(driver.rank)
    with Session(model, made, name, driver, **options) as run:
        backward = gradient(model, driver.rank)
        for lengths in epochs:
            for _ in range(lengths[driver.rank]):
                time.sleep(pauses.uniform(0, pause))
                made.zero_grad()
                backward(run.learner.steps)
                made.step()
                run.step()
            with run.consensus():
                pass
        return run.learner.params.tolist(), driver.record


def simulated(
    name: str,
    options: dict[str, Any],
    optimizer: str,
    epochs: Epochs,
    size: int,
    replay: Recordings | None = None,
) -> list[list[float]]:
    """Train virtual learners; returns the parameters of each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each of the processes
    try:
        learners = []
        for rank in range(size):
            model = Net()
            made = OPTIMIZERS[optimizer](model.parameters())
            backward = gradient(model, rank)
            one = VirtualLearner(model, made, backward, name, rank, size, **options)
            learners.append(one)
        simulation = Simulation(learners, replay=replay)
        simulation.start()
        for lengths in epochs:
            simulation.epoch(lengths)
            simulation.consensus()
        if replay is not None:
            simulation.engine.check_complete()  # type: ignore[attr-defined]
        return [v.learner.params.tolist() for v in learners]
    finally:
        torch.set_num_threads(threads)


def recorded(results: Sequence[tuple[list[float], list[Entry]]]) -> Recordings:
    return {rank: record for rank, (_, record) in enumerate(results)}


@pytest.mark.parametrize(
    ("name", "optimizer", "epochs", "exchange"),
    [
        ("adpsgd", "adam", [[12, 15, 9, 12], [0, 9, 11, 3]], "float32"),
        ("hadpsgd", "momentum", [[12, 12, 7, 7], [6, 6, 9, 9]], "float32"),
        # one epoch: of more, the reference is a mean, which gloo sums in its own order
        ("adpsgd", "momentum", [[15, 12, 9, 15]], "bfloat16"),
    ],
)
def test_the_recorded_schedule_gives_the_same_bits(
    name: str, optimizer: str, epochs: Epochs, exchange: str
) -> None:
    arguments = name, GOSSIP[name] | {"exchange": exchange}, optimizer, epochs
    results = launch(4, real, *arguments, 0.004)
    recordings = recorded(results)
    exchanged = [("gossip", value) for value in range(4)]
    assert any(entry in exchanged for entry in recordings[1] + recordings[2])
    found = simulated(*arguments, 4, recordings)
    assert found == [params for params, _ in results]


def swaps(recordings: Recordings, rank: int) -> list[Recordings]:
    """Each time two neighbouring entries of one learner are permuted."""
    permuted = []
    entries = recordings[rank]
    for at in range(len(entries) - 1):
        if entries[at] != entries[at + 1]:
            swapped = [*entries]
            swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
            permuted.append({**recordings, rank: swapped})
    return permuted


def test_a_permuted_recording_does_not_give_the_same_bits() -> None:
    """Some swap leaves a schedule that can be followed, to other parameters."""
    options = {"from_consensus": True}  # of two: gloo sums more in its own order
    arguments = "adpsgd", options, "momentum", [[24, 24], [16, 16]]
    results = launch(2, real, *arguments, 0.004)
    recordings = recorded(results)
    assert simulated(*arguments, 2, recordings) == [params for params, _ in results]
    for permuted in [*swaps(recordings, 0), *swaps(recordings, 1)]:
        try:
            found = simulated(*arguments, 2, permuted)
        except (ReplayError, AssertionError):
            continue
        if found != [params for params, _ in results]:
            return
    pytest.fail("no permutation of the recording made a difference")


def together(epochs: Epochs) -> list[list[float]]:
    """Train with each algorithm in turn whose learners step together."""
    return [
        real(name, options, "momentum", epochs, 0.0)[0] for name, options in TOGETHER
    ]


@pytest.mark.parametrize("size", [2, 4])
def test_learners_that_step_together_need_no_recording(size: int) -> None:
    """Two have one order of summing; of four, gloo chooses its own."""
    epochs = [[7] * size, [4] * size]
    results = launch(size, together, epochs)
    for number, (name, options) in enumerate(TOGETHER):
        found = torch.tensor([result[number] for result in results])
        expected = torch.tensor(simulated(name, options, "momentum", epochs, size))
        if size == 2:
            assert torch.equal(found, expected), (name, options)
        else:
            scale = float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * scale)
