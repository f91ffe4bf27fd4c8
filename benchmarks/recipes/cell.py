"""A cell is one training of a recipe; its name is unique and can be a path."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Options = tuple[tuple[str, Any], ...]
"""Options of an algorithm or of ESPnet as (name, value), in a fixed order."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training.

    Attributes:
        recipe: the name of the recipe, a key of `recipe.RECIPES`.
        learners: the number of processes that train together; 1 for `none`.
        algorithm: the algorithm, or `none`, which is stock ESPnet in one process.
        options: the algorithm's options, which override conf/distopt of the recipe.
        batch_size: the number of utterances of one step of all learners together; None
            keeps the recipe's.
        lr: the learning rate; None keeps the recipe's.
        seed: the seed of the initial model and of the order of batches.
    """

    recipe: str
    learners: int
    algorithm: str
    options: Options = ()
    batch_size: int | None = None
    lr: float | None = None
    seed: int

    @property
    def method(self) -> str:
        """The algorithm with its options, as tables name it."""
        more = [f"{name}={value}" for name, value in self.options]
        if self.batch_size is not None:
            more.append(f"batch_size={self.batch_size}")
        if self.lr is not None:
            more.append(f"lr={self.lr:g}")
        return ",".join([self.algorithm, *more])

    @property
    def name(self) -> str:
        """The name of the cell: RECIPE/LEARNERS/METHOD/SEED."""
        return f"{self.recipe}/{self.learners}/{self.method}/{self.seed}"

    def data(self) -> dict[str, Any]:
        """Return the cell as JSON holds it; lines without a rate are older than it."""
        rate = {} if self.lr is None else {"lr": self.lr}
        return {
            "recipe": self.recipe,
            "learners": self.learners,
            "algorithm": self.algorithm,
            "options": dict(self.options),
            "batch_size": self.batch_size,
            "seed": self.seed,
            **rate,
        }

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> "Cell":
        """Return the cell that `data` has written."""
        return cls(**{**data, "options": tuple(data["options"].items())})
