"""Expands a grammar of words into a graph of CTC's labels that a decoder searches.

The graph is the composition T L G of a grammar G, the spelling L of its words by
tokens, and CTC's topology T: a token lasts for one frame or more; blanks may stand
between tokens, and have to stand between two that are equal. This holds across words,
too, so a path of the graph is exactly a path that CTC's training has summed.

To leave a word without a blank, the next word has to begin with another token. The
words behind each state of the grammar are therefore the leaves of a binary tree,
ordered by their first tokens. All of them but those of one token are below a few nodes
of the tree, so the graph grows with the number of tokens, and not with its square.

Sources: Miao, Gowayyed and Metze, "EESEN: end-to-end speech recognition using deep RNN
models and WFST-based decoding", 2015, for T L G; the tree is ours.
"""

from collections.abc import Iterator, Mapping, Sequence

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.hmm.graph import FstText, Grammar, Graph

BLANK = 0
"""CTC's blank, the first token of ESPnet's lists."""

Spelling = Sequence[int]
"""The tokens of a word, by their numbers; never the blank."""


def expand_ctc(
    grammar: Grammar, spellings: Mapping[str, Spelling], tokens: int
) -> Graph:
    """Expand a grammar into CTC's labels.

    The graph has about as many arcs as `count_arcs` says.

    The number of tokens includes the blank.

    Raises:
        InputError: A word of the grammar has no spelling, or kaldifst is not installed.
    """
    for _, word, _, _ in grammar.words:
        if not spellings.get(word):
            raise InputError(f"{word!r} cannot be spelled by the model's tokens")
    writer = _Writer(grammar, spellings, tokens)
    labels: dict[str, int] = {}
    for source, word, cost, target in grammar.words:
        label = labels.setdefault(word, len(labels) + 1)
        writer.word(source, spellings[word], cost, target, label)
    writer.backoffs()
    writer.ends()
    return Graph(writer.compile(), ["", *labels], tokens, BLANK + 1)


def count_arcs(grammar: Grammar, spellings: Mapping[str, Spelling]) -> int:
    """Return about how many arcs `expand_ctc` makes of a grammar.

    The numbers of arcs of each token, word and state were fitted to graphs.
    """
    words = sum(4 * len(spellings[word]) + 2 for _, word, _, _ in grammar.words)
    return words + 4 * grammar.states


class _Writer(FstText):
    """Writes the words of a grammar, and what lies between them.

    A word is left to the state of the graph for the grammar's state and the word's last
    token, from which only other tokens follow. A blank leads from there to the state
    that has no last token, from which any word follows.
    """

    def __init__(
        self, grammar: Grammar, spellings: Mapping[str, Spelling], tokens: int
    ) -> None:
        super().__init__()
        self._grammar = grammar
        self._tokens = tokens
        self._backoff = {source: (cost, to) for source, cost, to in grammar.backoffs}
        firsts: dict[int, set[int]] = {}
        for source, word, _, _ in grammar.words:
            firsts.setdefault(source, set()).add(spellings[word][0])
        self._any = [self.state() for _ in range(grammar.states)]
        self._after: dict[tuple[int, int], int] = {}
        # The start has to be the source of the first arc.
        self._blank: dict[int, int] = {}
        self._blank_to(self._any[0], 0)
        self._trees = {
            number: _Tree(self, sorted(found)) for number, found in firsts.items()
        }
        for number, tree in self._trees.items():
            self.arc(self._any[number], tree.root, 0, 0)

    def word(
        self, source: int, spelling: Spelling, cost: float, target: int, label: int
    ) -> None:
        at, before, column = self._trees[source].leaf(spelling[0]), BLANK, self._tokens
        for token in spelling:
            into = self.state()
            self.arc(into, into, token + 1, 0)
            if token != before:
                self.arc(at, into, column + token + 1, label, cost)
            if before != BLANK:
                pause = self.state()
                self.arc(at, pause, BLANK + 1, 0)
                self.arc(pause, pause, BLANK + 1, 0)
                self.arc(pause, into, token + 1, 0)
            at, before, column, label, cost = into, token, 0, 0, 0.0
        self.arc(at, self._after_token(target, before), 0, 0)

    def backoffs(self) -> None:
        for source, (cost, target) in self._backoff.items():
            self.arc(self._any[source], self._any[target], 0, 0, cost)
        left = list(self._after.items())
        while left:
            (number, token), at = left.pop()
            if number not in self._backoff:
                continue
            cost, target = self._backoff[number]
            new = (target, token) not in self._after
            into = self._after_token(target, token)
            self.arc(at, into, 0, 0, cost)
            if new:
                left.append(((target, token), into))

    def ends(self) -> None:
        for number, cost in self._grammar.finals.items():
            self.final(self._any[number], cost)
        for (number, _), at in self._after.items():
            if number in self._grammar.finals:
                self.final(at, self._grammar.finals[number])

    def _after_token(self, number: int, token: int) -> int:
        """Return the state of the graph behind a word that ends with a token."""
        if (number, token) not in self._after:
            at = self._after[number, token] = self.state()
            self._blank_to(at, number)
            if number in self._trees:
                for node in self._trees[number].others(token):
                    self.arc(at, node, 0, 0)
        return self._after[number, token]

    def _blank_to(self, at: int, number: int) -> None:
        """Write a blank or more from a state to the one without a last token."""
        if number not in self._blank:
            pause = self._blank[number] = self.state()
            self.arc(at, pause, BLANK + 1, 0)
            self.arc(pause, pause, BLANK + 1, 0)
            self.arc(pause, self._any[number], 0, 0)
        else:
            self.arc(at, self._blank[number], BLANK + 1, 0)


class _Tree:
    """A binary tree whose leaves are the first tokens of words, in their order.

    Node n has the children 2n and 2n + 1, and node 1 is the root.
    """

    def __init__(self, writer: FstText, tokens: Sequence[int]) -> None:
        size = len(tokens)
        self._place = {token: place for place, token in enumerate(tokens)}
        self._nodes = [writer.state() for _ in range(2 * size)]
        for node in range(1, size):
            for child in (2 * node, 2 * node + 1):
                writer.arc(self._nodes[node], self._nodes[child], 0, 0)

    @property
    def root(self) -> int:
        return self._nodes[1]

    def leaf(self, token: int) -> int:
        return self._nodes[len(self._place) + self._place[token]]

    def others(self, token: int) -> Iterator[int]:
        """Yield nodes that have all leaves but a token's below them, each once."""
        size = len(self._place)
        place = self._place.get(token)
        if place is None:
            yield self.root
            return
        yield from self._cover(0, place)
        yield from self._cover(place + 1, size)

    def _cover(self, first: int, end: int) -> Iterator[int]:
        """Yield the fewest nodes with the leaves from `first` to before `end`."""
        low, high = first + len(self._place), end + len(self._place)
        while low < high:
            if low % 2:
                yield self._nodes[low]
                low += 1
            if high % 2:
                high -= 1
                yield self._nodes[high]
            low, high = low // 2, high // 2
