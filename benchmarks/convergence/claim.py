"""The module says what a claim is, which cells it needs, and what its verdict is.

A claim is a list of comparisons. Each compares a method with a reference, paired by
seed, and has a question that was asked before anything was measured. Where the case
that a claim is about must be found first, further comparisons follow from the answers
to earlier ones, by a rule that was written down before, too (`Claim.then`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from convergence.paired import Interval, Question, Verdict, difference
from convergence.sweep import Result
from convergence.training import Training

MOST_RATES = 12
"""The rates after which a search gives up: the loss has no minimum in sight."""


def search(
    rates: Sequence[float], loss: Callable[[float], float | None]
) -> tuple[float | None, list[float]]:
    """Return the best rate if it is known, and all rates that are needed to know it.

    The grid grows by the ratio of its first two rates, beyond the edge at which the
    best rate is, until the best rate has a worse neighbour on both sides. If the grid
    has `MOST_RATES` before that, the search gives up: there is no best rate, although
    all losses are known.

    Args:
        rates: the first rates, growing by a constant factor; at least two.
        loss: a function that returns the loss of a rate, infinity if the training
            diverged, or None if the loss is not known yet.
    """
    grid = sorted(rates)
    factor = grid[1] / grid[0]
    while True:
        losses = [loss(rate) for rate in grid]
        known = [math.inf if value is None else value for value in losses]
        if None in losses:
            return None, grid
        best = known.index(min(known))
        if 0 < best < len(grid) - 1:
            return grid[best], grid
        if len(grid) >= MOST_RATES:
            return None, grid
        if best == 0:
            grid.insert(0, rounded(grid[0] / factor))
        else:
            grid.append(rounded(grid[-1] * factor))


def rounded(rate: float) -> float:
    """Return a rate with three digits, so that it is the same cell every time."""
    return float(f"{rate:.3g}")


Results = Callable[[Training], Result | None]
"""A function that returns the result of a cell, or None if there is none yet."""

CHOOSING_SEED = 100
"""The seed with which rates are chosen. It takes no part in comparisons, so a rate is
not preferred for its luck with their seeds."""


@dataclass(frozen=True)
class Arm:
    """A method with its settings, of which a training is made for each seed.

    Attributes:
        cell: the training. Its seed does not matter.
        rates: the learning rates from which the best is chosen, see `search`; if there
            are none, the arm has the rate of `cell`.
        tuned_on: the training with which the rate is chosen, for a method that takes
            over the rate of another one; None means `cell`.
        factor: the factor by which the chosen rate is multiplied.
    """

    cell: Training
    rates: tuple[float, ...] = ()
    tuned_on: Training | None = None
    factor: float = 1.0

    def lr(self, results: Results) -> float | None:
        """Return the learning rate, or None if it is not chosen, or not to be found."""
        if not self.rates:
            return self.cell.lr
        best = self._search(results)[0]
        return None if best is None else best * self.factor

    def trainings(
        self, results: Results, seeds: tuple[int, ...]
    ) -> tuple[list[Training], list[Training]]:
        """Return the cells for choosing the rate, and those of the seeds.

        The second list is empty as long as the rate is not chosen.
        """
        choosing = self._cells_at(self._search(results)[1]) if self.rates else []
        lr = self.lr(results)
        if lr is None:
            return choosing, []
        return choosing, [replace(self.cell, lr=lr, seed=seed) for seed in seeds]

    def _cells_at(self, rates: list[float]) -> list[Training]:
        tuned = self.tuned_on or self.cell
        return [replace(tuned, lr=lr, seed=CHOOSING_SEED) for lr in rates]

    def _search(self, results: Results) -> tuple[float | None, list[float]]:
        def loss(rate: float) -> float | None:
            found = results(self._cells_at([rate])[0])
            if found is None:
                return None
            return math.inf if found["held_out"] is None else float(found["held_out"])

        return search(self.rates, loss)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of a method with a reference.

    Attributes:
        name: the name of the method with what is special about it.
        arm: the method.
        against: the name of the reference.
        reference: the reference.
        question: the question about the relative difference of the held-out losses.
        counts: whether the verdict of the claim depends on the answer. A comparison
            that does not count only stands in the table, for contrast.
    """

    name: str
    arm: Arm
    against: str
    reference: Arm
    question: Question
    counts: bool = True


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a comparison's question.

    Attributes:
        comparison: the comparison.
        lr: the learning rates of the method and of the reference.
        losses: the held-out losses of the method, by seed; None where it diverged.
        reference: those of the reference.
        difference: the relative difference in per cent, or None if the reference
            diverged.
        verdict: the answer.
    """

    comparison: Comparison
    lr: tuple[float, float]
    losses: list[float | None]
    reference: list[float | None]
    difference: Interval | None
    verdict: Verdict


Then = Callable[[list[Answer]], list[Comparison]]
"""A function of all answers so far that returns what to ask next, or an empty list."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, and how it is examined.

    Attributes:
        text: the claim, as a whole sentence.
        source: who makes the claim, and where: a paper and its table or figure.
        comparisons: the comparisons that are made first.
        seeds: the seeds by which trainings are paired.
        then: the function that is called whenever all comparisons so far are answered;
            None if there are no others than the first.
        note: what a reader has to know, beside what the page says of all trainings.
    """

    text: str
    source: str
    comparisons: tuple[Comparison, ...]
    seeds: tuple[int, ...]
    then: Then | None = None
    note: str = ""

    def asked(self, results: Results) -> list[Comparison]:
        """Return the comparisons, as far as known results tell."""
        asked = list(self.comparisons)
        while self.then is not None:
            answers = list(self._answers(asked, results))
            more = self.then(answers) if len(answers) == len(asked) else []
            if not more:
                break
            asked += more
        return asked

    def cells(self, results: Results) -> list[Training]:
        """Return the cells that are needed, as far as known results tell.

        A rate that is not chosen yet hides the cells that depend on it. So the caller
        computes these cells and asks again, until all have results.
        """
        found: dict[str, Training] = {}
        for each in self.asked(results):
            for arm in (each.reference, each.arm):
                for cells in arm.trainings(results, self.seeds):
                    found |= {str(cell.key()): cell for cell in cells}
        return list(found.values())

    def answers(self, results: Results) -> Iterator[Answer]:
        """Yield the answers to the comparisons whose cells all have results."""
        return self._answers(self.asked(results), results)

    def _answers(self, asked: list[Comparison], results: Results) -> Iterator[Answer]:
        for each in asked:
            arms = each.arm, each.reference
            both = [arm.trainings(results, self.seeds)[1] for arm in arms]
            if not all(both) or not all(results(c) for cells in both for c in cells):
                continue
            losses, reference = ([_loss(results, c) for c in cells] for cells in both)
            found = difference(losses, reference)
            yield Answer(
                comparison=each,
                lr=(both[0][0].lr, both[1][0].lr),
                losses=losses,
                reference=reference,
                difference=found,
                verdict=each.question.answer(found) if found else "undecided",
            )

    def is_complete(self, results: Results) -> bool:
        """Return whether every comparison has its answer."""
        return len(list(self.answers(results))) == len(self.asked(results))


def _loss(results: Results, cell: Training) -> float | None:
    return (results(cell) or {}).get("held_out")
