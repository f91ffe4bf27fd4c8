"""Fragments that take turns hide the averages of blocks at no loss.

The claim is that of Streaming DiLoCo, for Local SGD and BMUF-Adam. With 4 fragments and
blocks of 8 steps, each average is one step late. What a delay of all but one of the
block's steps costs, which hides as much without fragments, stands beside it.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE
from convergence.paired import Question
from convergence.training import LABELS

LEARNERS, PERIOD, STEPS = 4, 8, 1024
SAMPLES = STEPS * LEARNERS * ALONE.batch


def _comparisons() -> Iterator[Comparison]:
    one = replace(ALONE, learners=LEARNERS, samples=SAMPLES, problem=LABELS)
    for name, options in (
        ("local_sgd", {"period": PERIOD}),
        ("bmuf_adam", {"period": PERIOD, "warmup": STEPS // 5}),
    ):
        at_once = replace(one, algorithm=name, options=tuple(options.items()))
        for title, late, counts in (
            ("4 fragments, delay 1", {"fragments": 4, "delay": 1}, True),
            (f"delay {PERIOD - 1}", {"delay": PERIOD - 1}, False),
        ):
            given = tuple({**options, **late}.items())
            yield Comparison(
                name=f"{name}, {title}",
                arm=Arm(cell=replace(at_once, options=given)),
                against=f"{name}, delay 0",
                reference=Arm(cell=at_once),
                question=Question(2.0),
                counts=counts,
            )


CLAIM = Claim(
    text=(
        f"Local SGD and BMUF-Adam with {LEARNERS} learners whose averages are hidden "
        "by 4 fragments and a delay of 1 are not more than 2 % worse than with averages"
        " of the whole model, for which all wait."
    ),
    source="Streaming DiLoCo, arXiv 2501.18512",
    setting=(
        f"All trainings use Adam with a learning rate of {ALONE.lr:g} and have {STEPS} "
        f"steps, in which a learner has {ALONE.batch} samples. The rate is constant "
        "after a linear warm-up over a tenth of the steps, and gradients are clipped "
        f"to norm 5 before each optimizer's step. Blocks have {PERIOD} steps. With "
        "BMUF-Adam, blocks end in a plain average in the first fifth of the steps. The "
        f"problem is a {LABELS}."
    ),
    comparisons=tuple(_comparisons()),
    # Five seeds left one question open; about 32 were said to decide.
    seeds=tuple(range(32)),
)

CLAIMS = {"fragments": CLAIM}
