"""Counts of the scorers, known ones, and bootstrap intervals: how often they hold."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.recipes.commands.scoring import score_command as main
from espnet_distopt.recipes.scoring.counts import Counts, bootstrap_interval
from espnet_distopt.recipes.scoring.scorers import find_sclite


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


# (reference, hypothesis, correct, substituted, deleted, inserted)
PAIRS = [
    ("one two three", "one two three", 3, 0, 0, 0),
    ("one two three", "one too three", 2, 1, 0, 0),
    ("one two three", "one three", 2, 0, 1, 0),
    ("one two three", "one two two three", 3, 0, 0, 1),
    ("one two three", "", 0, 0, 3, 0),
    ("", "one", 0, 0, 0, 1),
    ("", "", 0, 0, 0, 0),
    ("one", "two", 0, 1, 0, 0),
    ("one", "two one", 1, 0, 0, 1),
    ("one", "one two", 1, 0, 0, 1),
    ("a b c d", "b c d", 3, 0, 1, 0),
    ("a b c d", "b c d e", 3, 0, 1, 1),
    ("a b c d", "a x c y", 2, 2, 0, 0),
    ("a b c d e", "a c e", 3, 0, 2, 0),
    ("a b a b a", "a b a", 3, 0, 2, 0),
    ("uh-huh i know", "uh-huh i don't know", 3, 0, 0, 1),
    ("th- that's it", "that's it", 2, 0, 1, 0),
    ("Yes yes", "yes yes", 1, 1, 0, 0),
    ("have a good day today john", "have a good day today john", 6, 0, 0, 0),
    ("grüße aus köln", "grüße aus koln", 2, 1, 0, 0),
    ("we were there for a week", "we are there a weak", 3, 2, 1, 0),
    ("so what do you do", "so what you do uh", 4, 0, 1, 1),
    ("b;c d", "b;x d", 1, 1, 0, 0),
    ("a &amp;b", "a &amp;c", 1, 1, 0, 0),
    (";; all", ";; fall", 1, 1, 0, 0),
    ("a b c", "a @ @ @ { x / b } c", 3, 0, 0, 7),
    ("{ a / b }", "a", 1, 0, 4, 0),
    ("a b", "a b (x-1)", 2, 0, 0, 1),
]

needs_sclite = pytest.mark.skipif(
    find_sclite() is None and "CI" not in os.environ, reason="sctk is not installed"
)
SCORERS = [pytest.param("sclite", marks=needs_sclite), "jiwer"]


def write_texts(path: Path, texts: list[str]) -> Path:
    lines = [f"spk-{n:02} {text}\n" for n, text in enumerate(texts)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def counted_by(
    tmp_path: Path, pairs: list[tuple[str, str]], scorer: str
) -> dict[str, int]:
    """Return what the command counts over all pairs."""
    ref = write_texts(tmp_path / "ref", [ref for ref, _ in pairs])
    hyp = write_texts(tmp_path / "hyp", [hyp for _, hyp in pairs])
    out = tmp_path / scorer
    main(f"--ref {ref} --hyp {hyp} --out {out} --scorer {scorer}".split())
    content = json.loads((out / "result.json").read_text())
    assert content["scorer"].startswith(scorer)
    counted: dict[str, int] = content["halves"]["all"]
    return counted


@pytest.mark.parametrize("scorer", SCORERS)
def test_known_sums(tmp_path: Path, scorer: str) -> None:
    counted = counted_by(tmp_path, [pair[:2] for pair in PAIRS], scorer)
    expected = [sum(pair[column] for pair in PAIRS) for column in range(2, 6)]
    assert [
        counted["correct"],
        counted["substitutions"],
        counted["deletions"],
        counted["insertions"],
    ] == expected
    assert counted["sentences"] == len(PAIRS)
    assert counted["words"] == sum(len(pair[0].split()) for pair in PAIRS)
    assert counted["sentence_errors"] == sum(pair[0] != pair[1] for pair in PAIRS)


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[0]])
def test_known_pair(
    tmp_path: Path, scorer: str, pair: tuple[str, str, int, int, int, int]
) -> None:
    counted = counted_by(tmp_path, [pair[:2]], scorer)
    names = ("correct", "substitutions", "deletions", "insertions")
    assert tuple(counted[name] for name in names) == pair[2:]


@needs_sclite
def test_where_the_scorers_differ(tmp_path: Path) -> None:
    # Five substitutions weigh 20 with sclite, three deletions and insertions 18.
    pair = ("a b c d e", "x y z a b")
    errors = {
        scorer: counted_by(tmp_path, [pair], scorer)["error_rate"]
        for scorer in ("sclite", "jiwer")
    }
    assert errors == {"sclite": 120.0, "jiwer": 100.0}


@needs_sclite
def test_both_ways_of_naming_sclite() -> None:
    found = [shutil.which(name) for name in ("sclite", "sctk")]
    for path in filter(None, found):
        given = find_sclite(path)
        assert given is not None
        assert given.label.startswith("sclite 2.")
