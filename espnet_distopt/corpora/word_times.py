"""Finds when each word of a known text is spoken, from CTC posteriors.

A CTC path visits the tokens of the text in order. It may visit the blank before, after
and between them, and it must do so between two equal tokens. Viterbi's algorithm finds
the path of the highest probability; a token lasts for the frames that this path spends
in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.kaldi.tokens import SPACE

WORD_START = "▁"
"""The sign by which sentencepiece marks the first subword of a word."""


@dataclass(frozen=True)
class TimedWord:
    """A word, its first frame, and its end: the frame after its last one."""

    word: str
    first: int
    end: int


def time_words(
    log_probs: NDArray[np.float32], tokens: Sequence[str], ids: Sequence[int], kind: str
) -> tuple[list[TimedWord], bool]:
    """Find the frames of each word.

    Args:
        log_probs: Log-posteriors, shape (frames, vocabulary); column 0 is the blank.
        tokens: The tokens of the text that was spoken, or decoded.
        ids: The column of each token.
        kind: The type of the tokens: `word`, `char` or `bpe`.

    Returns:
        The words, and whether a path exists. If there is none, for instance because
        there are more tokens than frames, the tokens are spread evenly over the frames.
    """
    found = token_frames(log_probs, ids)
    spans = spread(len(log_probs), len(ids)) if found is None else found
    words = [
        TimedWord(word, spans[first][0], spans[last][1])
        for word, first, last in spell(tokens, kind)
    ]
    return words, found is not None


def spell(tokens: Sequence[str], kind: str) -> list[tuple[str, int, int]]:
    """Join tokens into words.

    Args:
        tokens: The tokens of a text.
        kind: Their type: `word`, `char` or `bpe`.

    Returns:
        Each word with the indices of its first and its last token.

    Example:
        >>> spell(["▁a", "▁wor", "d"], "bpe")
        [('a', 0, 0), ('word', 1, 2)]
        >>> spell(["o", "k", "<space>", "a"], "char")
        [('ok', 0, 1), ('a', 3, 3)]
    """
    words: list[tuple[str, int, int]] = []
    open_word = False
    for index, token in enumerate(tokens):
        if kind == "char" and token == SPACE:
            open_word = False
            continue
        if open_word and kind != "word" and not _starts_word(token, kind):
            word, first, _ = words.pop()
            words.append((word + token, first, index))
        else:
            start = token.removeprefix(WORD_START) if kind == "bpe" else token
            words.append((start, index, index))
        open_word = True
    return [each for each in words if each[0]]


def _starts_word(token: str, kind: str) -> bool:
    return kind == "bpe" and token.startswith(WORD_START)


def spread(frames: int, count: int) -> list[tuple[int, int]]:
    """Divide frames evenly among `count` tokens.

    Every token has a frame: where frames are fewer than tokens, some tokens share one.

    Returns:
        The first frame and the end of each token.
    """
    starts = [index * frames // count for index in range(count)]
    return [
        (start, max(start + 1, (index + 1) * frames // count))
        for index, start in enumerate(starts)
    ]


def token_frames(
    log_probs: NDArray[np.float32], ids: Sequence[int], blank: int = 0
) -> list[tuple[int, int]] | None:
    """Find the frames of each token on the path of the highest probability.

    Args:
        log_probs: Log-posteriors, shape (frames, vocabulary).
        ids: The column of each token; none is `blank`.
        blank: The column of the blank.

    Returns:
        The first frame and the end of each token, or None if no path has a probability
        above zero.
    """
    states = np.full(2 * len(ids) + 1, blank)
    states[1::2] = ids
    if len(log_probs) == 0:
        return [] if len(ids) == 0 else None
    scores = _forward(log_probs[:, states], states)
    path = _backward(scores, states)
    if path is None:
        return None
    tokens = 2 * np.arange(len(ids)) + 1
    firsts = np.searchsorted(path, tokens, side="left").tolist()
    ends = np.searchsorted(path, tokens, side="right").tolist()
    return list(zip(firsts, ends, strict=True))


def _skips(states: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which states can be entered from two states before, without the blank."""
    skips = np.zeros(len(states), dtype=bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    return skips


def _forward(
    emissions: NDArray[np.float32], states: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the score of the best path into each state at each frame.

    Returns:
        Shape (frames, 2 + states). Two columns of -inf come first, so that every state
        has two columns before its own.
    """
    scores = np.full((len(emissions), len(states) + 2), -np.inf)
    scores[0, 2:4] = emissions[0, :2]
    penalty = np.where(_skips(states), 0.0, -np.inf)
    best = np.empty(len(states))
    for frame in range(1, len(emissions)):
        before = scores[frame - 1]
        np.add(before[:-2], penalty, out=best)
        np.maximum(best, before[1:-1], out=best)
        np.maximum(best, before[2:], out=best)
        np.add(best, emissions[frame], out=scores[frame, 2:])
    return scores


def _backward(
    scores: NDArray[np.float64], states: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Follow the best path back, and return its state at each frame."""
    skips = _skips(states)
    last = len(states) - 1
    final = [scores[-1, state + 2] for state in range(max(last - 1, 0), last + 1)]
    state = last - (len(final) - 1 - int(np.argmax(final)))
    if not np.isfinite(scores[-1, state + 2]):
        return None
    path = np.empty(len(scores), dtype=np.int64)
    path[-1] = state
    for frame in range(len(scores) - 2, -1, -1):
        skip, step, stay = scores[frame, state : state + 3].tolist()
        if skips[state] and skip > max(stay, step):
            state -= 2
        elif step > stay:
            state -= 1
        path[frame] = state
    return path
