"""A claim names the cells that it needs, and its verdict follows from their losses."""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from convergence.claim import (
    CHOOSING_SEED,
    MOST_RATES,
    Answer,
    Arm,
    Claim,
    Comparison,
    Results,
    search,
)
from convergence.claims_page import verdict, write
from convergence.paired import Question
from convergence.training import Training

ALONE = Training(
    algorithm="allreduce", learners=4, batch=2, samples=80, lr=0.1, seed=0,
    problem="digits",
)  # fmt: skip
GOSSIP = replace(ALONE, algorithm="adpsgd")


def compared(
    method: Training, question: Question, rates: tuple[float, ...] = ()
) -> Comparison:
    return Comparison(
        name=method.algorithm,
        arm=Arm(cell=method, rates=rates),
        against="allreduce",
        reference=Arm(cell=ALONE),
        question=question,
    )


def claim(*comparisons: Comparison) -> Claim:
    return Claim(
        text="Gossip is as good.",
        source="nobody",
        comparisons=comparisons,
        seeds=(0, 1, 2),
    )


def known(gossip: float | None, allreduce: float | None = 1.0) -> Results:
    """Return losses that scatter a little with the seed."""

    def result(cell: Training) -> dict[str, float | None]:
        loss = {"adpsgd": gossip, "allreduce": allreduce}.get(cell.algorithm)
        held_out = None if loss is None else loss * (1 + 0.001 * cell.seed)
        if cell.algorithm == "adpsgd" and held_out is not None:
            held_out *= 1 + 0.001 * (cell.seed % 2)
        return {"held_out": held_out}

    return result


AT_MOST = claim(compared(GOSSIP, Question(2.0)))


def test_a_claim_needs_both_trainings_of_each_seed_once() -> None:
    twice = claim(*AT_MOST.comparisons, *AT_MOST.comparisons)
    cells = twice.cells(lambda _: None)
    assert Counter((c.algorithm, c.seed) for c in cells) == {
        (name, seed): 1 for name in ("allreduce", "adpsgd") for seed in (0, 1, 2)
    }


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(1.0, "holds"), (1.02, "undecided"), (1.1, "does not hold here"),
     (None, "does not hold here")],
)  # fmt: skip
def test_the_verdict_follows_from_the_losses(loss: float | None, expected: str) -> None:
    assert verdict(AT_MOST, known(loss)) == expected


def test_a_claim_may_hold_in_part() -> None:
    worse = compared(replace(GOSSIP, lr=0.2), Question(5.0, "at least"))
    half = claim(*AT_MOST.comparisons, worse)
    assert verdict(half, known(1.0)) == "holds in part"
    contrast = claim(*AT_MOST.comparisons, replace(worse, counts=False))
    assert verdict(contrast, known(1.0)) == "holds"


def test_a_no_decides_against_a_claim_that_is_open_elsewhere() -> None:
    open_ = compared(replace(GOSSIP, lr=0.2), Question(10.0))
    assert verdict(claim(open_), known(1.1)) == "undecided"
    assert verdict(claim(open_, *AT_MOST.comparisons), known(1.1)) == (
        "does not hold here"
    )


def test_a_reference_that_diverged_leaves_the_claim_undecided() -> None:
    assert verdict(AT_MOST, known(1.0, None)) == "undecided"
    (answer,) = AT_MOST.answers(known(1.0, None))
    assert answer.difference is None


def test_a_claim_with_cells_missing_is_not_yet_measured() -> None:
    def some(cell: Training) -> dict[str, float | None] | None:
        return known(1.0)(cell) if cell.seed < 2 else None

    assert verdict(AT_MOST, some) == "not yet measured: 4 of 6 cells"
    assert list(AT_MOST.answers(some)) == []


def test_a_rate_is_chosen_with_a_seed_that_takes_no_part() -> None:
    tuned = claim(compared(GOSSIP, Question(2.0), rates=(0.1, 0.2)))

    def result(cell: Training) -> dict[str, float | None]:
        return {"held_out": abs(cell.lr - 0.4) + 1}

    first = [c for c in tuned.cells(lambda _: None) if c.algorithm == "adpsgd"]
    assert {(c.lr, c.seed) for c in first} == {(r, CHOOSING_SEED) for r in (0.1, 0.2)}
    then = [c for c in tuned.cells(result) if c.algorithm == "adpsgd"]
    chosen = {(c.lr, c.seed) for c in then if c.seed != CHOOSING_SEED}
    assert chosen == {(0.4, seed) for seed in (0, 1, 2)}
    assert CHOOSING_SEED not in tuned.seeds
    (answer,) = tuned.answers(result)
    assert answer.lr == (0.4, 0.1)


def test_a_method_may_take_over_the_rate_of_another() -> None:
    arm = Arm(cell=GOSSIP, rates=(0.1, 0.2), tuned_on=ALONE, factor=4)

    def result(cell: Training) -> dict[str, float | None]:
        return {"held_out": abs(cell.lr - 0.4) + 1}

    choosing, cells = arm.trainings(result, (0, 1))
    assert {(c.algorithm, c.seed) for c in choosing} == {("allreduce", CHOOSING_SEED)}
    assert [(c.algorithm, c.lr, c.seed) for c in cells] == [
        ("adpsgd", 1.6, 0), ("adpsgd", 1.6, 1)
    ]  # fmt: skip
    assert arm.trainings(lambda _: None, (0, 1))[1] == []


def then_double(answers: list[Answer]) -> list[Comparison]:
    """Ask about twice the batch, until the difference is above 10 %."""
    last = answers[-1]
    assert last.difference is not None
    if last.difference.mean > 10:
        return []
    cell = last.comparison.arm.cell
    larger = replace(cell, batch=2 * cell.batch)
    return [replace(last.comparison, arm=Arm(cell=larger))]


def by_batch(cell: Training) -> dict[str, float | None]:
    loss = 1 + 0.02 * cell.batch * (cell.algorithm == "adpsgd") + 0.001 * cell.seed
    return {"held_out": loss}


def test_comparisons_may_follow_from_earlier_answers() -> None:
    growing = replace(AT_MOST, then=then_double)
    assert growing.asked(lambda _: None) == list(AT_MOST.comparisons)
    asked = growing.asked(by_batch)
    assert [each.arm.cell.batch for each in asked] == [2, 4, 8]
    assert growing.is_complete(by_batch)
    assert {c.batch for c in growing.cells(by_batch)} == {2, 4, 8}

    def first_two(cell: Training) -> dict[str, float | None] | None:
        return by_batch(cell) if cell.batch < 8 else None

    assert not growing.is_complete(first_two)
    assert verdict(growing, first_two) == "not yet measured: 9 of 12 cells"


def test_a_claim_whose_case_was_not_found_is_undecided() -> None:
    contrast = replace(AT_MOST.comparisons[0], counts=False)
    expected = "undecided, as the case that it is about was not found"
    assert verdict(claim(contrast), known(1.0)) == expected
    page = "".join(write({"a": claim(contrast)}, known(1.0), {"a": {}}).values())
    assert "Which comparisons answer the question depends on the first ones." in page


def test_a_rate_that_is_not_found_leaves_the_claim_undecided() -> None:
    tuned = claim(compared(GOSSIP, Question(2.0), rates=(0.1, 0.2)))
    expected = "undecided, as the best learning rate of a method was not found"
    assert verdict(tuned, lambda cell: {"held_out": 1 / cell.lr}) == expected
    assert verdict(tuned, known(None)) == expected


def test_the_page_has_the_figures_of_every_claim() -> None:
    question = Question(2.0)
    second = claim(
        compared(replace(GOSSIP, options=(("topology", "random"),)), question)
    )
    page = "".join(
        write(
            {"a": AT_MOST, "b": second}, known(1.1), {"a": {"here": 6}, "b": {}}
        ).values()
    )
    rows = re.findall(
        r"^\| \[(\w)\]\(claims_in_detail.md#\w\): (.*) \|$", page, re.MULTILINE
    )
    assert [name for name, _ in rows] == ["a", "b"]
    assert "does not hold here | +10.0 % (+9.9 to +10.2), adpsgd | 3" in rows[0][1]
    assert "Computed on here (6 cells)." in page
    assert "python benchmarks/claims.py --only b\n" in page
    assert "The answer is yes in 0 of 1 comparisons." in page


def test_the_figure_of_an_open_claim_is_an_open_one() -> None:
    """It may be further from the limit than that of an answer that is yes."""

    def result(cell: Training) -> dict[str, float | None]:
        scattered = {"local_sgd": 0.95 + 0.05 * cell.seed, "adpsgd": 1.01}
        return {"held_out": scattered.get(cell.algorithm, 1.0)}

    blocks = compared(replace(GOSSIP, algorithm="local_sgd"), Question(2.0))
    both = claim(*AT_MOST.comparisons, blocks)
    assert verdict(both, result) == "undecided"
    page = "".join(write({"a": both}, result, {"a": {}}).values())
    assert re.search(r"undecided \| \+0\.0 % \(.*\), local_sgd \| 3", page)


def test_the_page_says_how_many_seeds_would_decide() -> None:
    page = "".join(write({"a": AT_MOST}, known(1.019), {"a": {}}).values())
    assert re.search(r"undecided; about \d+ seeds would decide", page)


def valley(best: float) -> Callable[[float], float]:
    return lambda rate: abs(math.log(rate / best))


def test_a_best_rate_inside_the_grid_ends_the_search() -> None:
    assert search([0.1, 0.2, 0.4], valley(0.2)) == (0.2, [0.1, 0.2, 0.4])


def test_the_grid_grows_beyond_the_edge_that_is_best() -> None:
    best, grid = search([0.1, 0.2, 0.4], valley(0.025))
    assert (best, grid) == (0.025, [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4])
    best, grid = search([0.1, 0.2], valley(0.8))
    assert (best, grid) == (0.8, [0.1, 0.2, 0.4, 0.8, 1.6])


def test_unknown_losses_are_asked_for_first() -> None:
    known = {0.1: 3.0, 0.2: 2.0}
    assert search([0.1, 0.2], known.get) == (None, [0.1, 0.2, 0.4])


def test_the_grid_shrinks_away_from_rates_that_diverge() -> None:
    losses = {0.1: 1.0, 0.2: 0.5, 0.05: 2.0}
    best, grid = search([0.4, 0.8], lambda rate: losses.get(rate, math.inf))
    assert (best, grid) == (0.2, [0.1, 0.2, 0.4, 0.8])


def test_a_search_without_a_minimum_gives_up() -> None:
    asked = []

    def falling(rate: float) -> float:
        asked.append(rate)
        return -rate

    best, grid = search([0.1, 0.2], falling)
    assert best is None
    assert set(grid) == set(asked)
    assert len(grid) == MOST_RATES
    assert search([0.1, 0.2], lambda _: math.inf)[0] is None
