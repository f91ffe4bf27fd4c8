"""Expands a grammar of words into a graph of HMM states that a decoder searches.

A grammar says which words may follow each other, and what each costs. Costs are
negative natural logarithms of probabilities, as in OpenFst. The graph is the
composition of Kaldi's H (states), L (lexicon) and G (grammar), without context and
without determinization, so each word's label stands on the first arc of the word and
tells exactly when it begins.

Source: Mohri, Pereira and Riley, "Speech recognition with weighted finite-state
transducers", 2008.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.hmm.language import SILENCE, STATES, Lexicon, PhoneStates
from espnet_distopt.recipes.hmm.ngram import BEGIN, END, NEVER, Gram, Ngram

_ARC_BYTES = 200
"""What an arc takes while a graph is built: its line of text, kaldifst's arc, and its
share of a state. Graphs of a million arcs took 164 (HMM states) to 218 (CTC)."""
_MEMORY = Path("/proc/meminfo")


def check_memory(arcs: int) -> str:
    """Return a line that tells how much memory a graph of so many arcs will take.

    Raises:
        InputError: This machine has not as much left.
    """
    needed, left = arcs * _ARC_BYTES / 1e9, _left() / 1e9
    graph = f"a graph of about {arcs:,} arcs takes {needed:.1f} GB in each process"
    if needed > left:
        raise InputError(
            f"{graph}, but this machine has {left:.1f} GB left: take an n-gram of a "
            "lower order (in a recipe: --ngram_order), or a pruned one"
        )
    return graph


def _left() -> float:
    """Return how many bytes of memory are left; infinity where nobody tells."""
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:  # This is not Linux.
        return math.inf
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else math.inf


@dataclass
class Graph:
    """A graph to search.

    An arc's input label is a column of the decoder's scores, plus 1. There are two
    columns for each pdf, with the same score:

    - column `pdf` for an arc within a word, or in silence;
    - column `P + pdf`, with P the number of pdfs, for the arc that enters a word. So
      the sequence of input labels alone shows where words begin.

    Attributes:
        fst: kaldifst's `StdVectorFst`.
        words: The words by their label; label 0 means no word.
        pdfs: The number of pdfs, P.
        silent: The pdfs below this one belong to no word.
    """

    fst: Any
    words: list[str]
    pdfs: int
    silent: int


class FstText:
    """The states and the arcs of a graph.

    The start is the source of the first arc that is written.
    """

    def __init__(self) -> None:
        self._count = 0
        # With a list of lines, a graph would take half as much memory again.
        self._text = io.StringIO()

    def state(self) -> int:
        """Return a new state."""
        self._count += 1
        return self._count - 1

    def arc(
        self, source: int, target: int, ilabel: int, olabel: int, cost: float = 0.0
    ) -> None:
        """Write an arc; label 0 takes no frame, and tells no word."""
        self._text.write(f"{source} {target} {ilabel} {olabel} {cost:.6f}\n")

    def final(self, state: int, cost: float) -> None:
        """Let a path end in a state."""
        self._text.write(f"{state} {cost:.6f}\n")

    def compile(self) -> Any:
        """Return the graph as kaldifst's `StdVectorFst`.

        Raises:
            InputError: kaldifst is not installed.
        """
        library = import_library("kaldifst")
        text = self._text.getvalue()
        self._text.close()
        return library.compile(text, acceptor=False)


def import_library(name: str) -> Any:
    """Return `kaldifst` or `kaldi_decoder`, which are optional.

    Raises:
        InputError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            "a search in a graph of words needs kaldifst and kaldi-decoder: "
            "pip install kaldifst kaldi-decoder"
        ) from None


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

    The words that are kept have a pronunciation; `penalty` is added to the cost of
    each.

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


_SILENCE_PROBABILITY = 0.5
"""How probable silence is before, between and after words, as in Kaldi's lexicons."""


@dataclass(frozen=True)
class HmmSet:
    """Hidden Markov models: their states, and how long one stays in each.

    Attributes:
        stay: The probability of staying in each state for one more frame, by pdf.
    """

    states: PhoneStates
    stay: Sequence[float]


def expand(
    grammar: Grammar, lexicon: Lexicon, models: HmmSet, scale: float = 1.0
) -> Graph:
    """Expand a grammar of words into states, with optional silence around each word.

    The graph has about 2 `STATES` arcs for each phone of each word arc of the grammar.

    The costs of staying in a state and of leaving it are multiplied by `scale`, which
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
