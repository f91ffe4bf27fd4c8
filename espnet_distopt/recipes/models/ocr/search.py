"""Finds the tokens of a line in its CTC posteriors.

There are two searches: the best path, and a prefix beam search, which may use a
language model or an n-gram over characters.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from espnet2.tasks.lm import LMTask
from numpy.typing import NDArray
from torch import Tensor

from espnet_distopt.errors import InputError, in_words
from espnet_distopt.recipes.hmm.ngram import (
    BEGIN,
    END,
    NEVER,
    UNKNOWN,
    Gram,
    Ngram,
    check_tokens,
    read_arpa,
)
from espnet_distopt.recipes.models.trained import check_whole

Prefix = tuple[int, ...]
"""The token ids with which a text begins."""


class Scorer(Protocol):
    """What a prefix beam search asks a language model or an n-gram."""

    def __call__(self, prefix: Prefix) -> NDArray[np.float64]:
        """Return the log-probability of each token after `prefix`, shape (V,)."""

    def ending(self, prefix: Prefix) -> float:
        """Return the log-probability that nothing follows `prefix`."""


def load_lm(directory: Path, tokens: Sequence[str]) -> Any:
    """Load a language model that `local/lm.sh` has trained.

    Its directory has `config.yaml` and `valid.loss.ave.pth`.

    Raises:
        InputError: the model cannot be loaded, or its token list is another one.
    """
    try:
        model, args = LMTask.build_model_from_file(
            directory / "config.yaml", directory / "valid.loss.ave.pth"
        )
        check_whole(model, directory / "valid.loss.ave.pth")
    except InputError:
        raise
    # A wrong file, a missing key and a wrong shape each raise another exception.
    except Exception as error:
        raise InputError(
            f"{directory}: not a language model: {in_words(error)}"
        ) from error
    if list(args.token_list) != list(tokens):
        raise InputError(
            f"{directory}: a language model over other tokens than the recognizer's"
        )
    return model.eval().lm


class PrefixScorer:
    """The scores of an ESPnet language model for the tokens that may follow a prefix.

    The scorer keeps the scores and the state of each prefix, because a beam search asks
    for the same prefix in many frames.

    Args:
        end: the id of the token that begins and ends a sentence.
    """

    def __init__(self, lm: Any, end: int) -> None:
        self._lm, self._end = lm, end
        self._known: dict[Prefix, tuple[NDArray[np.float64], Any]] = {}

    def __call__(self, prefix: Prefix) -> NDArray[np.float64]:
        """Return the log-probability of each token after `prefix`."""
        return self._scored(prefix)[0]

    def ending(self, prefix: Prefix) -> float:
        """Return the log-probability that nothing follows `prefix`."""
        return float(self(prefix)[self._end])

    def _scored(self, prefix: Prefix) -> tuple[NDArray[np.float64], Any]:
        if prefix not in self._known:
            # ESPnet's interface wants the encoder's output, which no model reads.
            nothing = torch.empty(0)
            before = (
                self._scored(prefix[:-1])[1] if prefix else self._lm.init_state(nothing)
            )
            read = torch.tensor([self._end, *prefix])
            scores, state = self._lm.score(read, before, nothing)
            self._known[prefix] = scores.double().numpy(), state
        return self._known[prefix]


MOST_KNOWN = 100_000
"""The number of histories whose scores are kept: 80 MB with 100 tokens."""


def load_ngram(path: Path, tokens: Sequence[str]) -> "NgramScorer":
    """Load an n-gram whose words are the tokens of a model.

    Token 0 is the blank, and the last token ends a sentence.

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
        lm_weight: the factor of the log-probabilities of the language model or the
            n-gram; it has no effect without either.
        penalty: the amount that is added to the log-probability for each token; above
            0, it favours long texts.
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
    """Return the best-path search."""

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

    Token 0 is the blank, and the last token ends a sentence. `scorer` returns the
    scores of a language model for a line; None is a search without one.
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

    The log-probabilities of a line have the shape (T, V); token 0 is the blank.
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
