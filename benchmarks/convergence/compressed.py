"""The module has the comparisons of compressed averages, and what they send.

The reference is DDP, whose ring all-reduce sends 8 (N - 1) / N bytes for each parameter
in every step. A share of the changes that is sent at the end of each block is one
setting; a block that is so long that averages in full precision send as little is the
other.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from convergence.claim import Arm, Claim, Comparison
from convergence.claims.no_loss_adam import ALONE, SETTING
from convergence.paired import Question
from convergence.training import Training
from espnet_distopt.algorithms.block.compression import CHUNK, bytes_of_chunk

MOST = Question(1.0)
STEPS = 2000


class Setting(NamedTuple):
    """What `local_sgd` sends.

    Attributes:
        period: the number of steps of a block.
        keep: the option `keep`; 1 for averages in full precision.
        bits: the bits of a value.
    """

    period: int
    keep: float
    bits: int = 8

    @property
    def options(self) -> dict[str, Any]:
        """The options of `local_sgd`, without those that have their default."""
        keep = {"keep": self.keep} if self.keep < 1 else {}
        bits = {"bits": self.bits} if self.bits != 8 else {}
        return {"period": self.period, **keep, **bits}

    def fewer(self, learners: int) -> float:
        """Return how many times fewer bytes than DDP a learner of `learners` sends."""
        if self.keep == 1:
            return self.period
        ddp = 8 * (learners - 1) / learners
        sent = (learners - 1) * bytes_of_chunk(self.keep, self.bits) / CHUNK
        return ddp * self.period / sent

    def name(self, learners: int) -> str:
        """Return the name of the method, with what it sends."""
        what = f"keep {self.keep:g}" if self.keep < 1 else "full precision"
        bits = f", {self.bits} bits" if self.bits != 8 else ""
        times = f"{self.fewer(learners):.0f} times fewer bytes"
        return f"local_sgd, period {self.period}, {what}{bits}: {times}"


def all_reduce(learners: int) -> Training:
    """Return the reference, a training of some learners by all-reduce."""
    return replace(ALONE, learners=learners, samples=STEPS * learners * ALONE.batch)


def claim(
    learners: int,
    times: int,
    setting: Setting,
    seeds: range,
    note: str,
    contrast: tuple[Comparison, ...] = (),
) -> Claim:
    """Return the claim that compressed averages cost no loss.

    Args:
        learners: the number of learners.
        times: how many times fewer bytes than DDP the claim says are sent.
        setting: what is sent.
        seeds: the seeds.
        note: how the seeds were chosen.
        contrast: comparisons on which the verdict does not depend.
    """
    bits = f" in {setting.bits} bits" if setting.bits != 8 else ""
    return Claim(
        text=(
            f"With {learners} learners, Local SGD that sends {times} times fewer bytes "
            f"than DDP, by compressed averages{bits}, is not more than 1 % worse than "
            "all-reduce."
        ),
        source="this project, `espnet_distopt/algorithms/block/compression.py`",
        setting=f"{SETTING} Bytes are those of a large model. {note}",
        comparisons=(comparison(learners, setting), *contrast),
        seeds=tuple(seeds),
    )


def comparison(
    learners: int,
    setting: Setting,
    reference: Setting | None = None,
    counts: bool = True,
) -> Comparison:
    """Return the comparison of a setting of `local_sgd` with another training.

    Args:
        learners: the number of learners.
        setting: what is sent.
        reference: what the reference sends; None for all-reduce.
        counts: whether the verdict depends on it.
    """
    name = "allreduce" if reference is None else reference.name(learners)
    return Comparison(
        name=setting.name(learners),
        arm=Arm(cell=_training(learners, setting)),
        against=name,
        reference=Arm(cell=_training(learners, reference)),
        question=MOST,
        counts=counts,
    )


def _training(learners: int, setting: Setting | None) -> Training:
    samples = STEPS * learners * ALONE.batch
    whole = replace(ALONE, learners=learners, samples=samples)
    if setting is None:
        return whole
    options = tuple(setting.options.items())
    return replace(whole, algorithm="local_sgd", options=options)
