"""The bootstrap interval: how often it holds the truth, and where there is none."""

import numpy as np
import pytest

from espnet_distopt.recipes.scoring.counts import Counts, bootstrap_interval


def counts(errors: int, words: int) -> Counts:
    return Counts(
        sentences=1,
        words=words,
        correct=max(words - errors, 0),
        substitutions=min(errors, words),
        deletions=0,
        insertions=max(errors - words, 0),
        sentence_errors=int(errors > 0),
    )


def test_holds_the_true_rate_95_times_in_100() -> None:
    # Speakers differ in how much they say and in how well they are recognized.
    rng = np.random.default_rng(1)
    held, trials = 0, 400
    for trial in range(trials):
        words = rng.integers(200, 800, size=60)
        errors = rng.binomial(words, rng.beta(6, 14, size=60))
        speakers = [counts(int(e), int(w)) for e, w in zip(errors, words, strict=True)]
        interval = bootstrap_interval(speakers, resamples=500, seed=trial)
        assert interval is not None
        held += interval[0] <= 30.0 <= interval[1]
    assert 0.92 <= held / trials <= 0.975


def test_same_seed_same_interval() -> None:
    speakers = [counts(n, 10 + n) for n in range(8)]
    assert bootstrap_interval(speakers) == bootstrap_interval(speakers)
    assert bootstrap_interval(speakers, seed=1) != bootstrap_interval(speakers)


def test_wider_at_a_higher_level() -> None:
    speakers = [counts(n, 20) for n in range(12)]
    low, high = bootstrap_interval(speakers, level=0.95) or (0, 0)
    lower, higher = bootstrap_interval(speakers, level=0.99) or (0, 0)
    assert lower < low < Counts.total(speakers).error_rate < high < higher


def test_ratio_of_sums_not_mean_of_ratios() -> None:
    # One has all the words: the others' 100 % weigh little.
    speakers = [counts(0, 10_000), *(counts(1, 1) for _ in range(9))]
    assert (bootstrap_interval(speakers, seed=3) or (0, 0))[0] < 0.1


@pytest.mark.parametrize(
    ("speakers", "expected"),
    [
        ([], None),
        ([(1, 10)], None),
        ([(1, 10), (2, 0)], None),
        ([(1, 10), (1, 10)], (10.0, 10.0)),
        ([(0, 10)] * 5, (0.0, 0.0)),
        ([(12, 10)] * 5, (120.0, 120.0)),
        ([(0, 1), (0, 1), (0, 0)], (0.0, 0.0)),
    ],
)
def test_degenerate(
    speakers: list[tuple[int, int]], expected: tuple[float, float] | None
) -> None:
    assert bootstrap_interval([counts(*each) for each in speakers]) == expected
