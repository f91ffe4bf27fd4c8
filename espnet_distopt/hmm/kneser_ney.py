"""Estimates n-gram models by interpolated Kneser-Ney smoothing.

Source: Chen and Goodman, "An empirical study of smoothing techniques for language
modeling", 1999, with one discount D for each order:

    p(w | h) = max(c(h w) - D, 0) / c(h) + D t(h) / c(h) p(w | h')

Here c(h) is the sum of the counts c(h w) over all w, t(h) is the number of different
words after h, and h' is h without its first word. At the highest order, and for
histories that begin a sentence, c counts how often an n-gram occurs. Below, it counts
how many different words stand before it. The words themselves are interpolated with the
uniform distribution. D is n1 / (n1 + 2 n2), where n1 and n2 are the numbers of n-grams
of the order whose count is 1 and 2.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from espnet_distopt.errors import InputError
from espnet_distopt.hmm.ngram import BEGIN, END, NEVER, Gram, Ngram

_DISCOUNT = 0.5
"""The discount of an order with no n-gram of count 1 or none of count 2, for which the
formula gives nothing useful."""


def estimate(
    sentences: Iterable[Sequence[str]], vocabulary: Iterable[str], order: int
) -> Ngram:
    """Estimate an n-gram model. It costs O(words x order) of time and memory.

    Args:
        sentences: The words of each sentence, which are all in the vocabulary.
        vocabulary: All words that get a probability.
        order: The greatest length of an n-gram, from 1.

    Raises:
        InputError: There are no sentences, or they have words that are not in the
            vocabulary, or the order is below 1.
    """
    if order < 1:
        raise InputError(f"the order of an n-gram is at least 1, not {order}")
    words = {*vocabulary, END}
    counts = _counts(sentences, order)
    unknown = sorted({gram[0] for gram in counts[0]} - words)
    if unknown:
        raise InputError(f"{unknown[0]!r} is in the text, but not in the vocabulary")
    if not counts[0]:
        raise InputError("no sentences to estimate an n-gram from")
    uniform = 1 / len(words)
    probabilities: dict[Gram, float] = {}
    weights: dict[Gram, float] = {}
    for of_order in counts:
        discount = _discount(of_order)
        totals: Counter[Gram] = Counter()
        types: Counter[Gram] = Counter()
        for gram, count in of_order.items():
            totals[gram[:-1]] += count
            types[gram[:-1]] += 1
        for history, total in totals.items():
            weights[history] = discount * types[history] / total
        for gram, count in of_order.items():
            history = gram[:-1]
            lower = probabilities[gram[1:]] if history else uniform
            own = max(count - discount, 0) / totals[history]
            probabilities[gram] = own + weights[history] * lower
    for word in words:
        probabilities.setdefault((word,), weights[()] * uniform)
    logs = {gram: math.log10(value) for gram, value in probabilities.items()}
    logs[BEGIN,] = NEVER
    backoffs = {h: math.log10(value) for h, value in weights.items() if h}
    return Ngram(order, logs, backoffs)


def _counts(sentences: Iterable[Sequence[str]], order: int) -> list[Counter[Gram]]:
    """Return the counts c of each order, from 1; none is of the begin by itself."""
    raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        padded = (BEGIN, *sentence, END)
        for end in range(2, len(padded) + 1):
            for length in range(1, min(order, end) + 1):
                raw[length - 1][padded[end - length : end]] += 1
    before: list[Counter[Gram]] = []
    for length in range(1, order):
        left: dict[Gram, set[str]] = defaultdict(set)
        for gram in raw[length]:
            left[gram[1:]].add(gram[0])
        before.append(
            Counter(
                {
                    gram: count if gram[0] == BEGIN else len(left[gram])
                    for gram, count in raw[length - 1].items()
                }
            )
        )
    return [*before, raw[-1]]


def _discount(counts: Counter[Gram]) -> float:
    once = sum(count == 1 for count in counts.values())
    twice = sum(count == 2 for count in counts.values())
    return once / (once + 2 * twice) if once and twice else _DISCOUNT
