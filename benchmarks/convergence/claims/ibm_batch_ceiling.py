"""AD-PSGD converges at 3 times the largest batch of all-reduce.

The claim is IBM's, about SGD with momentum and a BLSTM that labels frames. It is asked
of a small network and of such a BLSTM, and with Adam, which users of ESPnet have, and
for which AD-PSGD corrects the second moment to that of the whole batch.

All trainings see equally many samples, so a larger batch means fewer steps. A batch is
too large for all-reduce if the mean loss, at the best rate, is more than `LIMIT` above
that at the smallest batch. Batches grow by `FACTOR`, so the first one that is too large
is `FACTOR` times the ceiling, and there AD-PSGD is asked whether it still converges.
"""

import math
from dataclasses import dataclass, replace

from convergence.claim import Answer, Arm, Claim, Comparison, rounded
from convergence.paired import Question
from convergence.training import DIGITS, LABELS, Training

FACTOR = 3
LIMIT = 10.0
METHODS = {"ring": True, "random": False}
"""Topology of AD-PSGD -> whether the verdict depends on it."""

SOURCE = "IBM, figure 1: 12,288 samples beside 4,096"
RULE = (
    f"A method converges at a batch if its loss at its best rate is not more than "
    f"{LIMIT:g} % above all-reduce's at the smallest batch. Batches grow by a factor "
    f"of {FACTOR}, with equally many samples, until the mean loss of all-reduce is "
    "above that. AD-PSGD is asked whether it converges there; its difference to "
    "all-reduce at the same batch is for contrast. Every method has its best rate at "
    "every batch."
)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Batches that grow, and what is asked about them.

    Attributes:
        smallest: the training of all-reduce at the smallest batch.
        rates: the learning rates for it. At a batch r times larger, sqrt(r) times these
            are tried first.
        rungs: the number of batches.
    """

    smallest: Training
    rates: tuple[float, ...]
    rungs: int

    def first(self) -> Comparison:
        """Return the comparison of all-reduce at the second batch and at the first."""
        return self._rung(1)

    def then(self, answers: list[Answer]) -> list[Comparison]:
        """Return the next batch, or AD-PSGD at the batch that was too large."""
        last = answers[-1]
        if last.comparison.arm.cell.algorithm != "allreduce" or not last.difference:
            return []
        if last.difference.mean > LIMIT:
            return self._beyond(len(answers))
        following = len(answers) + 1
        return [self._rung(following)] if following < self.rungs else []

    def _rung(self, number: int) -> Comparison:
        return Comparison(
            name="allreduce",
            arm=self._arm(self.smallest, number),
            against="allreduce, smallest batch",
            reference=self._arm(self.smallest, 0),
            question=Question(LIMIT),
            counts=False,
        )

    def _beyond(self, number: int) -> list[Comparison]:
        """Return what is asked at the batch that is too large for all-reduce."""
        asked = []
        for topology, counts in METHODS.items():
            options = (("topology", topology),)
            cell = replace(self.smallest, algorithm="adpsgd", options=options)
            at_smallest = Comparison(
                name=f"adpsgd, {topology}",
                arm=self._arm(cell, number),
                against="allreduce, smallest batch",
                reference=self._arm(self.smallest, 0),
                question=Question(LIMIT),
                counts=counts,
            )
            there = self._arm(self.smallest, number)
            asked += [
                at_smallest,
                replace(
                    at_smallest,
                    against="allreduce, same batch",
                    reference=there,
                    question=Question(0.0),
                    counts=False,
                ),
            ]
        return asked

    def _arm(self, cell: Training, number: int) -> Arm:
        larger = FACTOR**number
        rates = tuple(rounded(rate * math.sqrt(larger)) for rate in self.rates)
        return Arm(cell=replace(cell, batch=cell.batch * larger), rates=rates)


def claim(ladder: Ladder, trained: str, setting: str) -> Claim:
    """Return the claim about a ladder.

    Args:
        ladder: the batches.
        trained: the model and the optimizer in a few words.
        setting: sentences about the problem and the optimizer.
    """
    steps = ladder.smallest.steps
    batch = ladder.smallest.learners * ladder.smallest.batch
    return Claim(
        text=(
            f"With {trained}, AD-PSGD still converges at {FACTOR} times the largest "
            "batch with which all-reduce converges."
        ),
        source=SOURCE,
        setting=(
            f"{RULE} {setting} The smallest batch has {batch} samples of "
            f"{ladder.smallest.learners} learners, with which a training has {steps:,} "
            "steps."
        ),
        comparisons=(ladder.first(),),
        then=ladder.then,
    )


LEARNERS = 16
SMALLEST = Training(
    algorithm="allreduce",
    learners=LEARNERS,
    batch=4,
    samples=248_832,  # The largest batch of 5, 81 times the smallest, has 48 steps.
    lr=0.0,
    seed=0,
    problem=DIGITS,
    schedule="constant",
)
SCHEDULE = "The rate is constant after a linear warm-up over a tenth of the steps."

CLAIMS = {
    "ibm_batch_ceiling": claim(
        Ladder(smallest=SMALLEST, rates=(0.0125, 0.025, 0.05), rungs=5),
        "a small network and momentum SGD",
        f"The optimizer is SGD with momentum 0.9. {SCHEDULE} The problem is a "
        f"{DIGITS}.",
    ),
    "ibm_batch_ceiling_adam": claim(
        Ladder(
            smallest=replace(SMALLEST, optim="adam"),
            rates=(0.0005, 0.001, 0.002),
            rungs=5,
        ),
        "a small network and Adam",
        f"The optimizer is Adam, with `second_moment: consistent`. {SCHEDULE} The "
        f"problem is a {DIGITS}.",
    ),
    "ibm_batch_ceiling_labels": claim(
        Ladder(
            smallest=replace(SMALLEST, problem=LABELS, samples=62_208),
            rates=(0.15, 0.3, 0.6),
            rungs=4,
        ),
        "a small BLSTM and momentum SGD",
        f"The optimizer is SGD with momentum 0.9. {SCHEDULE} The problem is a "
        f"{LABELS}.",
    ),
}
