"""Expands a grammar of words into a graph of HMM states that a decoder searches.

The graph is the composition of Kaldi's H (states), L (lexicon) and G (grammar), without
context and without determinization, so each word's label stands on the first arc of the
word and tells exactly when it begins.

Source: Mohri, Pereira and Riley, "Speech recognition with weighted finite-state
transducers", 2008.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from espnet_distopt.errors import InputError
from espnet_distopt.hmm.fst_text import FstText, Graph
from espnet_distopt.hmm.grammar import Grammar
from espnet_distopt.hmm.lexicon import SILENCE, Lexicon
from espnet_distopt.hmm.states import STATES, PhoneStates

_SILENCE_PROBABILITY = 0.5
"""How probable silence is before, between and after words, as in Kaldi's lexicons."""


@dataclass(frozen=True)
class HmmSet:
    """Hidden Markov models: their states, and how long one stays in each.

    Attributes:
        states: The states of the phones.
        stay: The probability of staying in each state for one more frame, by pdf.
    """

    states: PhoneStates
    stay: Sequence[float]


def expand(
    grammar: Grammar, lexicon: Lexicon, models: HmmSet, scale: float = 1.0
) -> Graph:
    """Expand a grammar of words into states, with optional silence around each word.

    The graph has about 2 `STATES` arcs for each phone of each word arc of the grammar.

    Args:
        grammar: The words that may follow each other.
        lexicon: Their pronunciations.
        models: The states.
        scale: The factor of the costs of staying in a state and of leaving it. It
            should be the acoustic scale, because both belong to the same model.

    Raises:
        InputError: A word of the grammar is not in the lexicon, or a phone has no
            states, or kaldifst is not installed.
    """
    writer = _Writer(models, scale)
    # Each state of the grammar becomes two: a word arrives at the first and the next
    # one leaves from the second; silence or nothing lies between them.
    arrive = [writer.state() for _ in range(grammar.states)]
    leave = [writer.state() for _ in range(grammar.states)]
    silence = -math.log(_SILENCE_PROBABILITY)
    nothing = -math.log(1 - _SILENCE_PROBABILITY)
    arrived = {0, *(target for *_, target in grammar.words)}
    for number in sorted(arrived):
        writer.arc(arrive[number], leave[number], 0, 0, nothing)
        writer.phones((SILENCE,), arrive[number], leave[number], silence, 0)
    labels: dict[str, int] = {}
    for source, word, cost, target in grammar.words:
        if word not in lexicon:
            raise InputError(f"{word!r} has no pronunciation in the lexicon")
        label = labels.setdefault(word, len(labels) + 1)
        for phones in lexicon[word]:
            writer.phones(phones, leave[source], arrive[target], cost, label)
    for source, cost, target in grammar.backoffs:
        writer.arc(leave[source], leave[target], 0, 0, cost)
    for number, cost in grammar.finals.items():
        writer.final(leave[number], cost)
    silent = len(models.states.pdfs(SILENCE))
    return Graph(writer.compile(), ["", *labels], len(models.states), silent)


def count_arcs(grammar: Grammar, lexicon: Lexicon) -> int:
    """Return how many arcs `expand` makes of a grammar, at most."""
    of_word = {
        word: sum(1 + 2 * STATES * len(phones) for phones in lexicon[word])
        for word in lexicon
    }
    silences = grammar.states * (2 + 2 * STATES)
    words = sum(of_word[word] for _, word, _, _ in grammar.words)
    return words + silences + len(grammar.backoffs)


class _Writer(FstText):
    """Writes the states of phones."""

    def __init__(self, models: HmmSet, scale: float) -> None:
        super().__init__()
        self._states = models.states
        self._stay = [-scale * math.log(p) for p in models.stay]
        self._go = [-scale * math.log(1 - p) for p in models.stay]

    def phones(
        self, phones: Sequence[str], source: int, target: int, cost: float, label: int
    ) -> None:
        """Write the states of phones between two states; `label` is the word's."""
        olabel = label
        for phone in phones:
            for pdf in self._states.pdfs(phone):
                into = self.state()
                first = len(self._states) if olabel else 0
                self.arc(source, into, first + pdf + 1, olabel, cost)
                self.arc(into, into, pdf + 1, 0, self._stay[pdf])
                source, cost, olabel = into, self._go[pdf], 0
        self.arc(source, target, 0, 0, cost)
