"""The module finds the tokens of a line in its CTC posteriors.

There are two searches: the best path, and a prefix beam search, which may use a
language model or an n-gram.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.ocr.language_model import Prefix, Scorer

Search = Callable[[Tensor, Tensor], list[list[int]]]
"""A function of encoder outputs (B, T, D) and their lengths (B,) that returns the token
ids of each line."""


@dataclass(frozen=True)
class Decoding:
    """The options of decoding, which are the keys of `conf/decode_ocr_lm.yaml`.

    Attributes:
        search: `greedy` takes the best token of each frame and removes repetitions and
            blanks; `prefix_beam` takes the text with the greatest sum over its paths,
            among those that stay in the beam; `ngram_beam` is the same search with an
            n-gram over characters.
        beam_size: the number of prefixes that the beam search keeps.
        lm_weight: the factor of the log-probabilities of the language model or the
            n-gram; it has no effect without either.
        penalty: the amount that is added to the log-probability for each token; above
            0, it favours long texts.
        batch_size: the number of lines that are encoded together.
    """

    search: Literal["greedy", "prefix_beam", "ngram_beam"] = "greedy"
    beam_size: int = 8
    lm_weight: float = 0.3
    penalty: float = 0.0
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name in ("beam_size", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1, not {getattr(self, name)}")
        for name in ("lm_weight", "penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} must be finite, not {getattr(self, name)}")


def greedy(ctc: Any) -> Search:
    """Return the best-path search.

    Args:
        ctc: ESPnet's CTC output layer; token 0 is the blank.
    """

    def search(encoded: Tensor, lengths: Tensor) -> list[list[int]]:
        best = ctc.argmax(encoded)
        paths = (row[:n] for row, n in zip(best, lengths.tolist(), strict=True))
        kept = (path.unique_consecutive() for path in paths)
        return [path[path > 0].tolist() for path in kept]

    return search


def prefix_beam(
    ctc: Any,
    tokens: Sequence[str],
    decoding: Decoding,
    scorer: Callable[[], Scorer] | None = None,
) -> Search:
    """Return the prefix beam search, which proceeds frame by frame.

    ESPnet's own beam search proceeds token by token. It misses the best text of a line
    that has hardly more frames than tokens, and such lines are common in images.

    Args:
        ctc: ESPnet's CTC output layer; token 0 is the blank, and the last token ends a
            sentence.
        tokens: the token list.
        decoding: the options of the search.
        scorer: a function that returns the scores of a language model for a line; None
            for a search without one.
    """
    end = len(tokens) - 1

    def search(encoded: Tensor, lengths: Tensor) -> list[list[int]]:
        log_probs = ctc.log_softmax(encoded).double().numpy()
        return [
            _best_prefix(row[:length, :end], decoding, scorer and scorer())
            for row, length in zip(log_probs, lengths.tolist(), strict=True)
        ]

    return search


def _best_prefix(
    log_probs: NDArray[np.float64], decoding: Decoding, lm: Scorer | None
) -> list[int]:
    """Return the token ids of the best text.

    Args:
        log_probs: the log-probabilities of a line, shape (T, V); token 0 is the blank.
        decoding: the options of the search.
        lm: the scores of a language model, or None.
    """
    # The beam holds three log-probabilities for each prefix: that of its paths that end
    # in a blank, that of its paths that end in its last token, and what the language
    # model and the penalty have added.
    beam: dict[Prefix, tuple[float, float, float]] = {(): (0.0, -np.inf, 0.0)}
    for frame in log_probs:
        tried = np.argsort(-frame[1:], kind="stable")[: decoding.beam_size] + 1
        blank = float(frame[0])
        blanks: dict[Prefix, float] = {}
        others: dict[Prefix, float] = {}
        extra: dict[Prefix, float] = {}

        for prefix, (in_blank, in_token, added) in beam.items():
            both = _add(in_blank, in_token)
            extra[prefix] = added
            blanks[prefix] = both + blank
            if prefix:
                same = in_token + float(frame[prefix[-1]])
                others[prefix] = _add(others.get(prefix, -np.inf), same)
            for token in map(int, tried):
                longer = (*prefix, token)
                # A repeated token makes the prefix longer only after a blank.
                before = in_blank if prefix and token == prefix[-1] else both
                value = before + float(frame[token])
                if value == -np.inf:
                    continue
                others[longer] = _add(others.get(longer, -np.inf), value)
                if longer not in extra:
                    likely = 0.0 if lm is None else float(lm(prefix)[token])
                    extra[longer] = (
                        added + decoding.penalty + decoding.lm_weight * likely
                    )
        prefixes = {
            prefix: (blanks.get(prefix, -np.inf), others.get(prefix, -np.inf), added)
            for prefix, added in extra.items()
        }
        kept = heapq.nlargest(
            decoding.beam_size, prefixes, key=lambda p: _score(prefixes[p])
        )
        beam = {prefix: prefixes[prefix] for prefix in kept}

    def final(prefix: Prefix) -> float:
        ending = 0.0 if lm is None else decoding.lm_weight * lm.ending(prefix)
        return _score(beam[prefix]) + ending

    best: Prefix = max(beam, key=final)
    return list(best)


def _score(state: tuple[float, float, float]) -> float:
    in_blank, in_token, added = state
    return _add(in_blank, in_token) + added


def _add(one: float, other: float) -> float:
    """Return log(exp(one) + exp(other))."""
    high, low = (one, other) if one > other else (other, one)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
