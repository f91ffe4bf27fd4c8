"""The module defines a row of the table: a user's training loop, which learners run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from espnet_distopt.session import Session

STEPS = 11
"""The number of steps of a run: three blocks of three steps, and a shorter block."""

GRADIENTS = ("allreduce", "hadpsgd", "d1d_grad")
MOMENTS = ("bmuf", "bmuf_adam")
COLUMNS = (
    *GRADIENTS,
    "adpsgd",
    "dpsgd",
    "d1d_model",
    "local_sgd",
    *MOMENTS,
    "slowmo",
    "diloco",
    "adasum",
)


class Turn(Protocol):
    """The part of a run that a user's step sees.

    Attributes:
        k: the number of the step.
        rank: the learner.
        session: the session of the first model; None in the plain loop.
    """

    k: int
    rank: int
    session: Session | None

    def batch(self, number: int = 0) -> tuple[Tensor, Tensor]:
        """Return inputs (n, 3) and targets (n, 2) of this learner and this step."""

    def backward(
        self,
        loss: Tensor,
        like: Tensor | None = None,
        by: Callable[[], None] | None = None,
    ) -> None:
        """Call `by` or `loss.backward()`.

        The gradient must be that of `like` or `loss`.
        """

    def average(self) -> None:
        """Call the session's `average_gradients`."""

    def stepped(self, pair: int = 0) -> None:
        """Call the step of a session."""

    def began_anew(self) -> None:
        """Drop the record so far, because the session has begun anew."""

    def reopen(self) -> None:
        """End the session, and begin another one."""


def refused(text: str, columns: Iterable[str] = COLUMNS) -> dict[str, str]:
    """Return column -> the pattern of the error's text, for each of `columns`."""
    return dict.fromkeys(columns, text)


def others(*columns: str) -> Sequence[str]:
    """Return all columns but `columns`."""
    return [column for column in COLUMNS if column not in columns]


ONE_PASS = refused("one backward pass a step", ["d1d_grad"])


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Use:
    """A row: what a user does. Each run has an instance of its own.

    The models of the learners start from different parameters.

    Attributes:
        title: the title of the row.
        note: the sentence that the page shows beside the row.
        refused: column -> the pattern of the error's text, for algorithms that refuse
            the row; with all others the row works.
        still: the names of parameters that do not change.
        everybody: whether every learner gets the error itself, instead of the news that
            another learner has ended.
        exact_alone: whether a single learner gives the bits of the plain loop.
        rounding: the tolerance of a run, for parameters of size 1; an update is 0.01 or
            more.
        known: whether the installed torch has what the row uses; if not, the row is
            not run.
        made: the class of the optimizer, and its options.
        pairs: the models with their optimizers; each pair has a session.
    """

    title: ClassVar[str] = ""
    note: ClassVar[str] = ""
    refused: ClassVar[Mapping[str, str]] = {}
    still: ClassVar[tuple[str, ...]] = ()
    everybody: ClassVar[bool] = False
    exact_alone: ClassVar[bool] = True
    rounding: ClassVar[float] = 2e-5
    known: ClassVar[bool] = True
    made: ClassVar[tuple[Any, dict[str, Any]]] = Adam, {"lr": 0.01}

    def __init__(self, rank: int) -> None:
        torch.manual_seed(rank)
        self.rank = rank
        self.model = self.net()
        self.optimizer = self.optimize(self.model)
        self.pairs: list[tuple[nn.Module, Optimizer]] = [(self.model, self.optimizer)]

    def net(self) -> nn.Module:
        return net()

    def optimize(self, model: nn.Module) -> Optimizer:
        kind, options = self.made
        optimizer: Optimizer = kind(model.parameters(), **options)
        return optimizer

    def loss(self, turn: Turn, number: int = 0) -> Tensor:
        """Return the loss of the step's batch `number`."""
        x, y = turn.batch(number)
        return (self.output(turn, x) - y).square().mean()

    def output(self, turn: Turn, x: Tensor) -> Tensor:
        """Return the output of the model for inputs (n, 3)."""
        output: Tensor = self.model(x)
        return output

    def step(self, turn: Turn) -> None:
        """Make one step of the loop."""
        self.optimizer.zero_grad()
        self.fill(turn)
        self.optimizer.step()
        turn.stepped()

    def fill(self, turn: Turn) -> None:
        """Give the parameters their gradients."""
        self.backward(turn, self.loss(turn))

    def backward(self, turn: Turn, loss: Tensor) -> None:
        """Make one backward pass."""
        turn.backward(loss)

    def skipped(self, column: str) -> int:
        """Return the number of updates that a learner's optimizer skips."""
        return 0


def rows_of(module: ModuleType) -> list[type[Use]]:
    """Return the rows that a module defines, in their order."""
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    ours = [each for each in classes if each.__module__ == module.__name__]
    return [each for each in ours if issubclass(each, Use) and each.title]
