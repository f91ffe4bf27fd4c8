"""The module has the comparisons of compressed averages, and what they send.

The reference is DDP, whose ring all-reduce sends 8 (N - 1) / N bytes for each parameter
in every step. A share of the changes that is sent at the end of each block is one
setting; a block that is so long that averages in full precision send as little is the
other.
"""

from collections.abc import Iterator
from dataclasses import replace

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE, SETTING
from convergence.paired import Question
from convergence.training import Training
from espnet_distopt.algorithms.block.compression import CHUNK, kept_of_chunk

MOST = Question(1.0)
STEPS = 2000


def all_reduce(learners: int) -> Training:
    """Return the reference, a training of some learners by all-reduce."""
    return replace(ALONE, learners=learners, samples=STEPS * learners * ALONE.batch)


def claim(
    learners: int, times: int, setting: tuple[int, float], seeds: range, note: str
) -> Claim:
    """Return the claim that compressed averages cost no loss.

    Args:
        learners: the number of learners.
        times: how many times fewer bytes than DDP the claim says are sent.
        setting: the period and the value of `keep`.
        seeds: the seeds.
        note: how the seeds were chosen.
    """
    return Claim(
        text=(
            f"With {learners} learners, Local SGD that sends {times} times fewer bytes "
            "than DDP, by compressed averages, is not more than 1 % worse than "
            "all-reduce."
        ),
        source="this project, `espnet_distopt/algorithms/block/compression.py`",
        setting=f"{SETTING} Bytes are those of a large model. {note}",
        comparisons=tuple(comparisons(all_reduce(learners), [setting], setting)),
        seeds=tuple(seeds),
    )


def fewer(learners: int, period: int, keep: float) -> float:
    """Return how many times fewer bytes than DDP `local_sgd` sends.

    Args:
        learners: the number of learners, N.
        period: the number of steps of a block.
        keep: the option `keep`; 1 for averages in full precision.
    """
    ddp = 8 * (learners - 1) / learners
    if keep == 1:
        return period
    sent = (learners - 1) * (2 + 2 * kept_of_chunk(keep)) / CHUNK
    return ddp * period / sent


def comparisons(
    whole: Training, settings: list[tuple[int, float]], counting: tuple[int, float]
) -> Iterator[Comparison]:
    """Yield the comparisons of some settings of `local_sgd` with all-reduce.

    Args:
        whole: the training of all-reduce.
        settings: a period and the value of `keep`, for each comparison.
        counting: that of them on which the verdict depends.
    """
    for period, keep in settings:
        options = {"period": period} | ({"keep": keep} if keep < 1 else {})
        times = fewer(whole.learners, period, keep)
        what = f"keep {keep:g}" if keep < 1 else "full precision"
        cell = replace(whole, algorithm="local_sgd", options=tuple(options.items()))
        yield Comparison(
            name=f"local_sgd, period {period}, {what}: {times:.0f} times fewer bytes",
            arm=Arm(cell=cell),
            against="allreduce",
            reference=Arm(cell=whole),
            question=MOST,
            counts=(period, keep) == counting,
        )
