"""Batches that grow until all-reduce fails, and what is asked of other methods there.

All trainings see equally many samples, so a larger batch means fewer steps. A method
converges at a batch if its loss is not more than a limit above that of all-reduce at
the smallest batch. The first batch at which the mean loss of all-reduce is above that
is the one at which the others are asked.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from convergence.claim import Answer, Arm, Comparison, rounded
from convergence.paired import Question
from convergence.training import Training


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Batches, and methods.

    Attributes:
        smallest: the training of all-reduce at the smallest batch.
        multiples: by how much the batches of the further trainings are larger.
        methods: name -> the algorithm, its options, and whether the verdict depends on
            it.
        rates: the rates from which each training chooses its best. At a batch r times
            larger, sqrt(r) times these are tried first. If there are none, the rate of
            `smallest` is scaled linearly, without any choice.
        parts: the rates at which all-reduce stands beside the others at the batch where
            it fails are its rate there, divided by these. Only 1 if rates are chosen.
        limit: the limit, in per cent.
    """

    smallest: Training
    multiples: tuple[int, ...]
    methods: dict[str, tuple[str, dict[str, str], bool]]
    rates: tuple[float, ...] = ()
    parts: tuple[int, ...] = (1,)
    limit: float = 10.0

    def first(self) -> Comparison:
        """Return the comparison of all-reduce at the second batch and at the first."""
        return self._rung(self.multiples[0])

    def then(self, answers: list[Answer]) -> list[Comparison]:
        """Return the next batch, or what is asked at the one that was too large."""
        last = answers[-1]
        if last.comparison.arm.cell.algorithm != "allreduce" or not last.difference:
            return []
        if last.difference.mean > self.limit:
            return list(self._beyond(self.multiples[len(answers) - 1]))
        following = self.multiples[len(answers) : len(answers) + 1]
        return [self._rung(multiple) for multiple in following]

    def _rung(self, multiple: int) -> Comparison:
        return Comparison(
            name=f"allreduce, {self._batch(multiple)}",
            arm=self._arm(self.smallest, multiple),
            against="allreduce, smallest batch",
            reference=self._arm(self.smallest, 1),
            question=Question(self.limit),
            counts=False,
        )

    def _beyond(self, multiple: int) -> Iterator[Comparison]:
        """Yield what is asked at the batch that was too large for all-reduce."""
        for name, (algorithm, options, counts) in self.methods.items():
            given = tuple(options.items())
            cell = replace(self.smallest, algorithm=algorithm, options=given)
            asked = replace(
                self._rung(multiple),
                name=f"{name}, {self._batch(multiple)}",
                arm=self._arm(cell, multiple),
                counts=counts,
            )
            yield asked
            for part in self.parts:
                rate = f", rate / {part}" if part > 1 else ""
                yield replace(
                    asked,
                    against=f"allreduce, same batch{rate}",
                    reference=self._arm(self.smallest, multiple, part),
                    question=Question(0.0),
                    counts=False,
                )

    def _batch(self, multiple: int) -> str:
        batch = self.smallest.learners * self.smallest.batch * multiple
        return f"batch {batch:,}"

    def _arm(self, cell: Training, multiple: int, part: int = 1) -> Arm:
        larger = replace(cell, batch=cell.batch * multiple)
        if not self.rates:
            return Arm(cell=replace(larger, lr=rounded(cell.lr * multiple / part)))
        rates = tuple(rounded(rate * math.sqrt(multiple)) for rate in self.rates)
        return Arm(cell=larger, rates=rates)
