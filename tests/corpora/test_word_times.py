"""Viterbi against brute force, and words out of tokens."""

from itertools import groupby, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.corpora.word_times import (
    TimedWord,
    spell,
    spread,
    time_words,
    token_frames,
)


def _collapse(path: tuple[int, ...]) -> list[int]:
    return [token for token, _ in groupby(path) if token != 0]


def _best_of_all_paths(log_probs: np.ndarray, ids: list[int]) -> float:
    frames, vocabulary = log_probs.shape
    paths = product(range(vocabulary), repeat=frames)
    scores = [
        sum(float(log_probs[t, token]) for t, token in enumerate(path))
        for path in paths
        if _collapse(path) == ids
    ]
    return max(scores, default=-np.inf)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(1, 6),
    ids=st.lists(st.integers(1, 3), max_size=4),
)
def test_the_best_of_all_paths_is_found(seed: int, frames: int, ids: list[int]) -> None:
    scores = np.random.default_rng(seed).normal(size=(frames, 4)) * 3
    log_probs = (scores - np.logaddexp.reduce(scores, 1, keepdims=True)).astype("f4")
    found = token_frames(log_probs, ids)
    best = _best_of_all_paths(log_probs, ids)
    if found is None:
        assert best == -np.inf
        return
    # The path itself: each token over its frames, blanks elsewhere.
    path = np.zeros(frames, dtype=int)
    for token, (first, end) in zip(ids, found, strict=True):
        assert 0 <= first < end <= frames
        path[first:end] = token
    assert _collapse(tuple(path)) == ids
    assert sum(log_probs[range(frames), path]) == pytest.approx(best, rel=1e-5)


def _one_hot(path: list[int], vocabulary: int = 4) -> np.ndarray:
    return np.log(0.97 * np.eye(vocabulary)[path] + 0.01).astype("f4")


@pytest.mark.parametrize(
    ("path", "ids", "expected"),
    [
        ([0, 1, 1, 0, 2], [1, 2], [(1, 3), (4, 5)]),
        ([1, 2, 2, 2], [1, 2], [(0, 1), (1, 4)]),
        ([1, 0, 1], [1, 1], [(0, 1), (2, 3)]),
        ([3, 3, 3], [3], [(0, 3)]),
        ([0, 0], [], []),
    ],
)
def test_a_certain_path(
    path: list[int], ids: list[int], expected: list[tuple[int, int]]
) -> None:
    assert token_frames(_one_hot(path), ids) == expected


@pytest.mark.parametrize(
    ("frames", "ids"), [(0, [1]), (1, [1, 2]), (2, [1, 1]), (4, [1, 1, 1])]
)
def test_too_few_frames(frames: int, ids: list[int]) -> None:
    assert token_frames(_one_hot([0] * frames), ids) is None


def test_numbers_that_are_none_give_no_path() -> None:
    assert token_frames(np.full((3, 4), np.nan, dtype="f4"), [1]) is None


@pytest.mark.parametrize(
    ("frames", "count", "expected"),
    [
        (6, 3, [(0, 2), (2, 4), (4, 6)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (5, 2, [(0, 2), (2, 5)]),
        (3, 0, []),
    ],
)
def test_spread(frames: int, count: int, expected: list[tuple[int, int]]) -> None:
    assert spread(frames, count) == expected


@pytest.mark.parametrize(
    ("tokens", "kind", "expected"),
    [
        ("one two", "word", [("one", 0, 0), ("two", 1, 1)]),
        ("▁one", "word", [("▁one", 0, 0)]),
        ("▁on e ▁two", "bpe", [("one", 0, 1), ("two", 2, 2)]),
        ("▁ one ▁two", "bpe", [("one", 0, 1), ("two", 2, 2)]),
        ("▁ ▁two", "bpe", [("two", 1, 1)]),
        ("▁", "bpe", []),
        ("on e ▁two", "bpe", [("one", 0, 1), ("two", 2, 2)]),
        ("▁a <unk>", "bpe", [("a<unk>", 0, 1)]),
        ("a b <space> c", "char", [("ab", 0, 1), ("c", 3, 3)]),
        ("<space> a <space> <space> b", "char", [("a", 1, 1), ("b", 4, 4)]),
        ("", "char", []),
    ],
)
def test_spell(tokens: str, kind: str, expected: list[tuple[str, int, int]]) -> None:
    assert spell(tokens.split(), kind) == expected


def test_time_words() -> None:
    log_probs = _one_hot([0, 1, 0, 2, 2, 0, 3])
    words, found = time_words(log_probs, ["▁a", "b", "▁c"], [1, 2, 3], "bpe")
    assert found
    assert words == [TimedWord("ab", 1, 5), TimedWord("c", 6, 7)]


def test_more_tokens_than_frames_are_spread() -> None:
    words, found = time_words(_one_hot([0, 0]), ["a", "b", "c"], [1, 2, 3], "word")
    assert not found
    assert [(word.first, word.end) for word in words] == [(0, 1), (0, 1), (1, 2)]
