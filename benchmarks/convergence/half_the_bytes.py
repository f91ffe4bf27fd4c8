"""The module compares averages of blocks in bfloat16 with those in float32."""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.bmuf_adam_no_loss import BLOCKS, PERIOD
from convergence.claims.no_loss_adam import ALONE, SETTING
from convergence.paired import Question


def claim(learners: int, seeds: range) -> Claim:
    """Return the claim that bfloat16 costs no loss.

    Args:
        learners: the number of learners.
        seeds: the seeds.
    """
    return Claim(
        text=(
            "With exchange: bfloat16, which sends half the bytes, Local SGD and "
            f"BMUF-Adam with {learners} learners are not more than 2 % worse than with "
            "float32."
        ),
        source="this project, `espnet_distopt/algorithms/block/compression.py`",
        setting=(
            f"{SETTING} Blocks have {PERIOD} steps. With BMUF-Adam, blocks end in a "
            "plain average in the first fifth of the steps."
        ),
        comparisons=tuple(_comparisons(learners)),
        seeds=tuple(seeds),
    )


def _comparisons(learners: int) -> Iterator[Comparison]:
    steps = PERIOD * BLOCKS[learners]
    one = replace(ALONE, learners=learners, samples=steps * learners * ALONE.batch)
    for name, options in (
        ("local_sgd", {"period": PERIOD}),
        ("bmuf_adam", {"period": PERIOD, "warmup": steps // 5}),
    ):
        whole = replace(one, algorithm=name, options=tuple(options.items()))
        halved = {**options, "exchange": "bfloat16"}
        yield Comparison(
            name=f"{name}, exchange bfloat16",
            arm=Arm(cell=replace(whole, options=tuple(halved.items()))),
            against=f"{name}, exchange float32",
            reference=Arm(cell=whole),
            question=Question(2.0),
            counts=True,
        )
