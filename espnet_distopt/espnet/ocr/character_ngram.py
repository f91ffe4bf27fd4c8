"""The module scores the prefixes of a beam search with an n-gram over characters."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.espnet.ocr.language_model import Prefix
from espnet_distopt.hmm.ngram import (
    BEGIN,
    END,
    NEVER,
    UNKNOWN,
    Gram,
    Ngram,
    check_tokens,
    read_arpa,
)

MOST_KNOWN = 100_000
"""The number of histories whose scores are kept: 80 MB with 100 tokens."""


def load_ngram(path: Path, tokens: Sequence[str]) -> "NgramScorer":
    """Load an n-gram whose words are the tokens of a model.

    Args:
        path: the ARPA file.
        tokens: the recognizer's token list; token 0 is the blank, and the last token
            ends a sentence.

    Raises:
        InputError: the file cannot be read, or the n-gram is one over other tokens.
    """
    model = read_arpa(path)
    check_tokens(path, model.words(), tokens)
    return NgramScorer(model, tokens)


class NgramScorer:
    """The scores of an n-gram for the tokens that may follow a prefix.

    An n-gram sees the last tokens of a prefix only. The scores after these are kept, so
    that they are hardly ever added up twice, even for different lines. Once there are
    `MOST_KNOWN`, all are forgotten, so that memory does not grow with the lines.

    Args:
        model: the n-gram.
        tokens: the recognizer's token list. A token that the n-gram lacks is scored as
            `<unk>`, and never follows if the n-gram lacks that, too.
    """

    def __init__(self, model: Ngram, tokens: Sequence[str]) -> None:
        self._order, self._backoffs = model.order, model.backoffs
        self._end = len(tokens) - 1
        known = model.probabilities.keys()
        self._words = [each if (each,) in known else UNKNOWN for each in tokens]
        self._words[0], self._words[-1] = BEGIN, END
        places: dict[str, list[int]] = {}
        for index, word in enumerate(self._words):
            places.setdefault(word, []).append(index)
        self._explicit: dict[Gram, list[tuple[int, float]]] = {}
        for gram, value in model.probabilities.items():
            entries = self._explicit.setdefault(gram[:-1], [])
            entries += [(index, value) for index in places.get(gram[-1], ())]
        self._known: dict[Gram, NDArray[np.float64]] = {}

    def __call__(self, prefix: Prefix) -> NDArray[np.float64]:
        """Return the log-probability of each token after `prefix`, shape (V,).

        It costs O(V x order) for a new history, and a look-up for a known one.
        """
        words = (BEGIN, *(self._words[token] for token in prefix[-self._order :]))
        return self._after(words[-(self._order - 1) :] if self._order > 1 else ())

    def ending(self, prefix: Prefix) -> float:
        """Return the log-probability that nothing follows `prefix`."""
        return float(self(prefix)[self._end])

    def _after(self, history: Gram) -> NDArray[np.float64]:
        if history not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            if history:
                backoff = self._backoffs.get(history, 0.0)
                scores = self._after(history[1:]) + backoff * math.log(10)
            else:
                scores = np.full(len(self._words), NEVER * math.log(10))
            for index, value in self._explicit.get(history, ()):
                scores[index] = value * math.log(10)
            self._known[history] = scores
        return self._known[history]
