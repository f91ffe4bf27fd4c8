"""The module makes every method that benchmarks compare a function that makes one step.

A method trains a replica. It is a loop without communication (`none`), one of this
project's algorithms, or a peer: another implementation (`emulated.peers`).
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
    "bare TCP": ("stream", "torch"),
}
"""Name of a peer -> (its module in `emulated.peers`, the package that it needs)."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMethod:
    """A method with its options and its optimizer.

    Attributes:
        name: `none`, the name of one of this project's algorithms, or that of a peer.
        options: the options of the algorithm or peer.
        adam: whether the optimizer is Adam; otherwise it is SGD.
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
        """Return the reason why a peer cannot run here; None if the method can run."""
        if self.name not in PEERS:
            return None
        try:
            importlib.import_module(PEERS[self.name][1])
        except ImportError as error:
            return f"not installed: {error}"
        return None

    def optimizer(self, parameters: Any) -> Optimizer:
        """Return the optimizer, in its fused form, which moves the fewest bytes."""
        make = Adam if self.adam else SGD
        return make(parameters, lr=1e-6, fused=True)


@dataclass(frozen=True)
class MeasuredTraining:
    """The training of one learner by a method.

    Attributes:
        step: a function that makes a step.
        finish: a function that ends an epoch, which all learners call.
        exchanges: a function that returns how often the learner has averaged with
            others; it returns 0 for methods that average at fixed steps.
        session: the session, if the method is one of this project's algorithms.
    """

    step: Callable[[], None]
    finish: Callable[[], object] = lambda: None
    exchanges: Callable[[], float] = lambda: 0.0
    session: Session | None = None


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train a model; all learners call this function.

    Args:
        method: the method.
        model: this learner's replica.
    """
    if method.name in PEERS:
        peer = importlib.import_module(f"emulated.peers.{PEERS[method.name][0]}")
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
    """Return a function that makes a step and does not communicate by itself."""

    def step() -> None:
        optimizer.zero_grad()
        model(batch()).backward()
        optimizer.step()

    return step
