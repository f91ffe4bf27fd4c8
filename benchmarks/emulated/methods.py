"""What the benchmarks compare: every method as a function that makes one step.

Each method is given a replica and trains it, with what it needs around the step:
nothing at all (`none`), one of this project's algorithms, or a peer (`machines.peers`).
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer

from emulated.emulated import Emulated, batch
from espnet_distopt import Session

PEERS = {
    "DDP": ("ddp", "torch"),
    "PostLocalSGD": ("post_local_sgd", "torch"),
    "decent-dp": ("decent", "decent_dp"),
    "fairscale SlowMo": ("slowmo", "fairscale"),
    "hivemind": ("local_updates", "hivemind"),
}
"""Name of a peer -> (its module in `machines.peers`, the package that it needs)."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMethod:
    """A way to train.

    Attributes:
        name: "none", an algorithm of this project, or a peer.
        options: of it.
        adam: the optimizer is Adam, else SGD.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    adam: bool = False

    @property
    def label(self) -> str:
        """The method with its options, for a table."""
        options = ", ".join(f"{k} {v}" for k, v in self.options.items())
        name = "no communication" if self.name == "none" else self.name
        optimizer = ", Adam" if self.adam else ""
        return name + (f" ({options})" if options else "") + optimizer

    @property
    def ours(self) -> bool:
        """Whether it is one of this project's algorithms."""
        return self.name not in PEERS and self.name != "none"

    def missing(self) -> str | None:
        """Return why a peer cannot run here, or None."""
        if self.name not in PEERS:
            return None
        try:
            importlib.import_module(PEERS[self.name][1])
        except ImportError as error:
            return f"not installed: {error}"
        return None

    def optimizer(self, parameters: Any) -> Optimizer:
        """Return the optimizer; fused, as it reads and writes the least memory."""
        make = Adam if self.adam else SGD
        return make(parameters, lr=1e-6, fused=True)


@dataclass(frozen=True)
class MeasuredTraining:
    """A method at work on one learner.

    Attributes:
        step: makes a step.
        finish: ends an epoch, with the others.
        exchanges: how often it has averaged with others, where it does so when it can.
        session: of one of this project's algorithms.
    """

    step: Callable[[], None]
    finish: Callable[[], object] = lambda: None
    exchanges: Callable[[], float] = lambda: 0.0
    session: Session | None = None


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train `model`; all learners do."""
    if method.name in PEERS:
        peer = importlib.import_module(f"machines.peers.{PEERS[method.name][0]}")
        made: MeasuredTraining = peer.begin(method, model)
        return made
    optimizer = method.optimizer(model.parameters())
    train = plain(model, optimizer)
    if method.name == "none":
        return MeasuredTraining(train)
    session = Session(model, optimizer, method.name, **method.options)

    def step() -> None:
        train()
        session.step()

    exchanged = 0.0

    def exchanges() -> float:
        nonlocal exchanged
        exchanged += session.metrics().get("exchanges", 0.0)
        return exchanged

    return MeasuredTraining(step, session.finish, exchanges, session)


def plain(model: torch.nn.Module, optimizer: Optimizer) -> Callable[[], None]:
    """Return a step without any communication of its own."""

    def step() -> None:
        optimizer.zero_grad()
        model(batch()).backward()
        optimizer.step()

    return step
