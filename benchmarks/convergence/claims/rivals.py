"""Each method at its best learning rate is as good as all-reduce at its own.

The claim is common to the papers on these methods, and this is one table of all of
them. The block methods have blocks of equally many steps, whatever their papers use.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.paired import Question
from convergence.training import DIGITS, Training

PERIOD, STEPS = 8, 320
WARM_UP = STEPS // 5
WHOLE = Training(
    algorithm="allreduce",
    learners=16,
    batch=4,
    samples=STEPS * 16 * 4,
    lr=0.0,
    seed=0,
    optim="adam",
    problem=DIGITS,
    schedule="constant",
)
RATES = (0.001, 0.002, 0.004)
METHODS: dict[str, dict[str, object]] = {
    "adpsgd": {"topology": "random"},
    "hadpsgd": {"per_node": 4},
    "dpsgd": {},
    "local_sgd": {"period": PERIOD},
    "slowmo": {"period": PERIOD, "momentum": 0.6},
    "diloco": {"period": PERIOD, "warmup": WARM_UP},
    "bmuf": {"period": PERIOD, "warmup": WARM_UP},
    "bmuf_adam": {"period": PERIOD, "warmup": WARM_UP},
    "adasum": {},
}
"""Algorithm -> its options."""


def _comparisons() -> Iterator[Comparison]:
    for algorithm, options in METHODS.items():
        given = tuple(options.items())
        cell = replace(WHOLE, algorithm=algorithm, options=given)
        yield Comparison(
            name=algorithm,
            arm=Arm(cell=cell, rates=RATES),
            against="allreduce",
            reference=Arm(cell=WHOLE, rates=RATES),
            question=Question(2.0),
        )


CLAIM = Claim(
    text=(
        "AD-PSGD, H-ADPSGD, D-PSGD, Local SGD, SlowMo, DiLoCo, BMUF, BMUF-Adam and "
        f"Adasum with {WHOLE.learners} learners are not more than 2 % worse than "
        "all-reduce, each at its best rate."
    ),
    source="the papers on these methods",
    setting=(
        f"All trainings use Adam, and a learner's step has {WHOLE.batch} samples. The "
        "rate is constant after a linear warm-up over a tenth of the steps. Blocks "
        f"have {PERIOD} steps. DiLoCo, BMUF and BMUF-Adam end blocks in a plain "
        "average in the first fifth of the steps. Slow momentum is 0.6, as its authors "
        "advise for 16 learners, and H-ADPSGD has nodes of 4. AD-PSGD, H-ADPSGD, "
        "D-PSGD and Local SGD correct the second moment (`second_moment: consistent`). "
        f"The problem is a {DIGITS}."
    ),
    comparisons=tuple(_comparisons()),
    # Five seeds left six questions open; up to 16 were said to decide four of them.
    seeds=tuple(range(16)),
)

CLAIMS = {"rivals": CLAIM}
