"""At the linearly scaled rate all-reduce diverges where decentralised methods do not.

The claim is IBM's, whose tables have one schedule and no seeds: the rate grows with the
batch, and the number of samples stays. All-reduce diverges from some batch on.
Decentralised methods converge there; and all-reduce with a smaller rate, at which it
converges, is worse than they are. Gradients are not clipped.

Here the batches are multiples of the base batch. They grow until the mean loss of
all-reduce is more than `LIMIT` above that at the base batch; at that batch the others
are asked whether they are still within `LIMIT`.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Answer, Arm, Claim, Comparison, rounded
from convergence.paired import Question
from convergence.training import DEEP_DIGITS, Training

LIMIT = 10.0
MULTIPLES = (4, 6, 8, 12, 16)
METHODS = {"dpsgd": "randomized_ring", "adpsgd": "random"}
BASE = Training(
    algorithm="allreduce",
    learners=16,
    batch=16,
    samples=147_456,
    lr=0.1,
    seed=0,
    problem=DEEP_DIGITS,
    schedule="constant",
    clip=1e9,
)


def at(multiple: int, algorithm: str = "allreduce", factor: float = 1) -> Arm:
    """Return a method at a multiple of the base batch and of its rate.

    Args:
        multiple: the multiple.
        algorithm: the name of the method.
        factor: a factor on the rate.
    """
    options = (("topology", METHODS[algorithm]),) if algorithm in METHODS else ()
    whole = BASE.samples // (BASE.learners * BASE.batch * multiple)
    batch = BASE.batch * multiple
    return Arm(
        cell=replace(
            BASE,
            algorithm=algorithm,
            options=options,
            batch=batch,
            samples=whole * BASE.learners * batch,
            lr=rounded(BASE.lr * multiple * factor),
        )
    )


def size(multiple: int) -> str:
    """Return the number of samples of a batch, in words."""
    return f"batch {BASE.learners * BASE.batch * multiple:,}"


def rung(multiple: int) -> Comparison:
    """Return the comparison of all-reduce at a batch with the base batch."""
    return Comparison(
        name=f"allreduce, {size(multiple)}",
        arm=at(multiple),
        against="allreduce, base batch",
        reference=at(1),
        question=Question(LIMIT),
        counts=False,
    )


def then(answers: list[Answer]) -> list[Comparison]:
    """Return the next batch, or what is asked at the one that was too large."""
    last = answers[-1]
    if last.comparison.arm.cell.algorithm != "allreduce" or not last.difference:
        return []
    if last.difference.mean > LIMIT:
        return list(beyond(MULTIPLES[len(answers) - 1]))
    return [rung(each) for each in MULTIPLES[len(answers) : len(answers) + 1]]


def beyond(ceiling: int) -> Iterator[Comparison]:
    """Yield what is asked of the decentralised methods at and beyond a batch."""
    for algorithm in METHODS:
        yield replace(
            rung(ceiling),
            name=f"{algorithm}, {size(ceiling)}",
            arm=at(ceiling, algorithm),
            counts=True,
        )
    for multiple in MULTIPLES[MULTIPLES.index(ceiling) :]:
        for algorithm in METHODS:
            for part in (1, 2, 4):
                rate = f", rate / {part}" if part > 1 else ""
                yield Comparison(
                    name=f"{algorithm}, {size(multiple)}",
                    arm=at(multiple, algorithm),
                    against=f"allreduce, {size(multiple)}{rate}",
                    reference=at(multiple, factor=1 / part),
                    question=Question(0.0),
                    counts=False,
                )


CLAIM = Claim(
    text=(
        "With momentum SGD at the linearly scaled rate, D-PSGD and AD-PSGD with random "
        "neighbours still converge at the first batch at which all-reduce does not."
    ),
    source="IBM, arXiv 2112.01433, tables 3 and 5, and 1907.05701, table 1",
    setting=(
        f"A method converges at a batch if its loss is not more than {LIMIT:g} % above "
        f"all-reduce's at the base batch of {BASE.learners * BASE.batch}. There the "
        f"rate is {BASE.lr:g}, and it grows as the batch does, with equally many "
        "samples. Batches grow until the mean loss of all-reduce is above the limit; "
        "there the others are asked. For contrast they are compared with all-reduce at "
        "the same batch, at the scaled rate and at a half and a quarter of it. The "
        f"optimizer is SGD with momentum 0.9, without clipping, of {BASE.learners} "
        "learners. The rate is constant after a linear warm-up over a tenth of the "
        f"steps. The problem is a {DEEP_DIGITS}. The rate of the base batch was chosen "
        "with seed 0, which takes no part."
    ),
    comparisons=(rung(MULTIPLES[0]),),
    seeds=(1, 2, 3, 4, 5),
    then=then,
)

CLAIMS = {"ibm_linear_scaling": CLAIM}
