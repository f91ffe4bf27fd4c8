"""The module defines a training that both drivers run, and what is compared of it.

`conformance_real` trains in real processes, and `conformance_simulated` follows their
records in a simulation.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from tests.simulation.replay import Entry

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": partial(Adam, lr=0.05),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
}


class Net(nn.Module):
    """A small recurrent model with 4 outputs per frame."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(3, 5)
        self.out = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.rnn(x)[0]
        out: Tensor = self.out(hidden)
        return out


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training: its algorithm, its data and its schedule.

    Attributes:
        name: of the algorithm.
        options: of the algorithm.
        optimizer: one of `OPTIMIZERS`.
        epochs: for each the steps of each learner, or the items of a work queue.
        uneven: batches have 1 to 3 utterances, and weigh as much; else 2 and 1.
        stops: real learners are stopped within the first epoch, and go on in a
            session of their own.
        pause: the longest before a step of a real learner, in seconds.
        slow: how many times as long the last two learners' are.
    """

    name: str
    options: dict[str, Any]
    optimizer: str
    epochs: Sequence[Sequence[int] | int]
    uneven: bool = False
    stops: bool = False
    pause: float = 0.0
    slow: float = 1.0


class Part(NamedTuple):
    """The record of one session of a learner.

    Attributes:
        params: at its end.
        record: of its driver.
        items: for each epoch, those that it has trained on.
        state: at its end, as in a file.
        queue: what is left of the work queue of its last epoch.
        sent: bytes, without those of the consensus distance.
    """

    params: list[float]
    record: list[Entry]
    items: list[list[int]]
    state: bytes
    queue: Any
    sent: float


def gradient(
    model: nn.Module, rank: int, weigh: Callable[[float], None] | None
) -> Callable[[int], float]:
    """Return the batch of a learner and an item; its utterances have 7 frames."""

    def backward(item: int) -> float:
        data = torch.Generator().manual_seed(1000 * rank + item)
        utterances = 2 if weigh is None else 1 + (rank + item) % 3
        x = torch.randn(7, utterances, 3, generator=data)
        y = torch.randint(4, (7 * utterances,), generator=data)
        if weigh is not None:
            weigh(utterances)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return backward


def to_file(state: dict[str, Any]) -> bytes:
    """Return the bytes of a file that holds the state."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_file(saved: bytes) -> dict[str, Any]:
    """Return a state from a file that may hold only tensors and plain values."""
    state: dict[str, Any] = torch.load(io.BytesIO(saved), weights_only=True)
    return state


def check_equal(real: Any, simulated: Any) -> None:
    """Check that two states are the same, bit for bit."""
    if isinstance(real, dict):
        assert real.keys() == simulated.keys()
        for key, value in real.items():
            check_equal(value, simulated[key])
    elif isinstance(real, list):
        assert len(real) == len(simulated)
        for one, other in zip(real, simulated, strict=True):
            check_equal(one, other)
    elif isinstance(real, Tensor):
        assert torch.equal(real, simulated)
    else:
        assert real == simulated
