"""Sessions of learners whose model is one vector of zeros."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.core.effects import Effect
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.session import Session


def session(
    algorithm: str, size: int = 1, lr: float = 1.0, silence: float = 3.0, **options: Any
) -> Session:
    """Begin a session with SGD.

    Args:
        algorithm: the algorithm.
        size: the number of elements.
        lr: the learning rate.
        silence: seconds without a heartbeat after which a learner counts as lost.
        options: those of the algorithm and of the session.
    """
    model = nn.Linear(size, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    optimizer = SGD(model.parameters(), lr=lr)
    driver = ProcessGroupDriver(silence=silence)
    return Session(model, optimizer, algorithm, driver, **options)


def step(run: Session, loss: Callable[[Tensor], Tensor] = Tensor.sum) -> None:
    """Make a step on a loss of the vector."""
    run.learner.optimizer.zero_grad()
    (x,) = run.learner.parameters
    loss(x).backward()  # type: ignore[no-untyped-call]
    run.learner.optimizer.step()
    run.step()


def perform(driver: ProcessGroupDriver, effect: Effect) -> Any:
    """Run a program that yields one effect; return the effect's result."""

    def program() -> Any:
        return (yield effect)

    return driver.run(program())
