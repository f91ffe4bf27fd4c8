"""What gossip holds for a learner between two events, for checks of an algorithm."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class GossipState:
    """The published copy of a learner, and what its parameters still lack.

    The live parameters plus `weight` times each difference are what the learner will
    have once its gossip has ended. A check of an algorithm reads this and changes
    nothing: the tensors are the algorithm's own.

    Attributes:
        copy: (P,) the copy that other learners are sent; None if the learner has ended
            a step since it published, because the copy was in an exchange.
        differences: tensors (P,) that the live parameters lack.
        weight: the share of a difference by which each end of an exchange moves.
        age: own steps between a copy and the application of its correction, the
            largest so far, those still in use included.
        max_age: the bound on `age` that the algorithm promises.
    """

    copy: Tensor | None
    differences: list[Tensor]
    weight: float
    age: int
    max_age: int
