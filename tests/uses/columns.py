"""The module has the columns of the table: the algorithms with their options."""

from dataclasses import dataclass, field
from typing import Any

from tests.uses.use import GRADIENTS


@dataclass(frozen=True)
class Column:
    """An algorithm, as two learners run it in the test.

    Attributes:
        algorithm: the name of the algorithm.
        options: its options; blocks are short, so that a run has several of them.
        momentum: the momentum of the block filter, for the oracle.
        block_lr: the learning rate of the block filter, for the oracle.
        nesterov: whether the block filter uses Nesterov momentum, for the oracle.
        from_start: whether the consensus model is the start of the next block.
        steps_alone: whether a single learner does something else than the plain loop.
    """

    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)
    momentum: float = 0.0
    block_lr: float = 1.0
    nesterov: bool = False
    from_start: bool = False
    steps_alone: bool = False

    @property
    def gradients(self) -> bool:
        return self.algorithm in GRADIENTS

    def given(self, size: int) -> dict[str, Any]:
        """Return the options for `size` learners; a single one has a node of one."""
        nodes = {"per_node": 1} if "per_node" in self.options and size == 1 else {}
        return self.options | nodes

    @property
    def period(self) -> int:
        period: int = self.options.get("period", 0)
        return period


BLOCK = {"period": 3}

ALL = [
    Column("allreduce"),
    Column("hadpsgd", {"per_node": 2}),
    Column("d1d_grad"),
    Column("adpsgd"),
    Column("dpsgd"),
    Column("d1d_model"),
    Column("local_sgd", BLOCK),
    Column("bmuf", BLOCK, momentum=0.5, nesterov=True),
    Column("bmuf_adam", BLOCK, momentum=0.5, nesterov=True),
    Column("slowmo", BLOCK, momentum=0.5, steps_alone=True),
    Column("diloco", BLOCK, 0.9, 0.7, True, from_start=True, steps_alone=True),
    Column("adasum"),
]
