"""Grammars: which words may follow each other, and what each of them costs.

Costs are negative natural logarithms of probabilities, as in OpenFst.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from espnet_distopt.errors import InputError
from espnet_distopt.hmm.ngram import BEGIN, END, NEVER, Gram, Ngram


@dataclass
class Grammar:
    """A weighted acceptor of words.

    Attributes:
        states: The number of its states; the first is the start.
        words: Arcs: source, word, cost, target.
        backoffs: Arcs without a word: source, cost, target.
        finals: State -> the cost of ending there.
    """

    states: int = 1
    words: list[tuple[int, str, float, int]] = field(default_factory=list)
    backoffs: list[tuple[int, float, int]] = field(default_factory=list)
    finals: dict[int, float] = field(default_factory=dict)


def linear_grammar(words: Sequence[str]) -> Grammar:
    """Return a grammar of a single sentence, for forced alignment."""
    arcs = [(n, word, 0.0, n + 1) for n, word in enumerate(words)]
    return Grammar(len(words) + 1, arcs, [], {len(words): 0.0})


def ngram_grammar(
    model: Ngram, words: Mapping[str, object], penalty: float = 0.0
) -> Grammar:
    """Return a grammar whose states are the histories of an n-gram model.

    Args:
        model: The model.
        words: The words that are kept, those with a pronunciation.
        penalty: A cost that is added to that of each word.

    Raises:
        InputError: The model has none of these words.
    """
    histories = {gram for gram in model.backoffs if len(gram) < model.order}
    histories |= {gram[:-1] for gram in model.probabilities if len(gram) > 1}
    start: Gram = (BEGIN,) if (BEGIN,) in histories else ()
    ordered = [start, *sorted(histories - {start, ()}), *([()] if start else [])]
    numbers = {history: number for number, history in enumerate(ordered)}

    def state(history: Gram) -> int:
        while history not in numbers:
            history = history[1:]
        return numbers[history]

    grammar = Grammar(len(ordered))
    for gram, log10 in model.probabilities.items():
        source, word = numbers[gram[:-1]], gram[-1]
        cost = -log10 * math.log(10)
        if word == END:
            grammar.finals[source] = cost
        elif word in words and log10 > NEVER:
            target = state(gram[-(model.order - 1) :] if model.order > 1 else ())
            grammar.words.append((source, word, cost + penalty, target))
    for history, number in numbers.items():
        if history:
            cost = -model.backoffs.get(history, 0.0) * math.log(10)
            grammar.backoffs.append((number, cost, state(history[1:])))
    if not grammar.words:
        raise InputError("the n-gram has none of the lexicon's words")
    return grammar
