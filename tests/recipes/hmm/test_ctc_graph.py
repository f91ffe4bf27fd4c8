"""The graph of CTC's labels against the definition of CTC, by trying all paths."""

import math
from itertools import groupby, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.hmm.ctc_graph import BLANK, count_arcs, expand_ctc
from espnet_distopt.recipes.hmm.graph import Grammar, linear_grammar, ngram_grammar
from espnet_distopt.recipes.hmm.ngram import Ngram, estimate
from espnet_distopt.recipes.hmm.search import Search, best_path

WIDE = Search(acoustic_scale=1.0, beam=1000.0, max_active=100_000)
SPELLINGS = {"a": [1], "b": [2], "ab": [1, 2], "aa": [1, 1], "ba": [2, 1]}
TEXT = [["a", "a"], ["b", "ab", "a"], ["aa", "b"], ["ba", "a", "a"], ["b", "b", "ab"]]
TOKENS = 3


def cost_of_words(model: Ngram, penalty: float) -> dict[tuple[int, ...], float]:
    """Return tokens -> the cost of the best words that are spelled by them."""
    found: dict[tuple[int, ...], float] = {}
    for count in range(5):
        for words in product(SPELLINGS, repeat=count):
            spelled = tuple(token for word in words for token in SPELLINGS[word])
            cost = -model.sentence(words) * math.log(10) + penalty * count
            found[spelled] = min(cost, found.get(spelled, math.inf))
    return found


MODEL = estimate(TEXT, SPELLINGS, 3)
COSTS = cost_of_words(MODEL, 0.5)
GRAPH = expand_ctc(ngram_grammar(MODEL, SPELLINGS, 0.5), SPELLINGS, TOKENS)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_best_path_is_the_best_of_all_paths(seed: int, frames: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.log(rng.dirichlet([0.3] * TOKENS, frames) + 1e-9).astype(np.float32)
    best = math.inf
    for path in product(range(TOKENS), repeat=frames):
        tokens = tuple(label for label, _ in groupby(path) if label != BLANK)
        cost = -sum(scores[frame, label] for frame, label in enumerate(path))
        # Sentences of five words or more need more than four frames.
        best = min(best, cost + COSTS[tokens])
    found = best_path(GRAPH, scores, WIDE)
    assert found is not None
    words = [word for word, *_ in found.words]
    cost = -sum(scores[frame, label] for frame, label in enumerate(found.pdfs))
    cost += -MODEL.sentence(words) * math.log(10) + 0.5 * len(words)
    assert cost == pytest.approx(best, abs=1e-3)
    labels = [label for label, _ in groupby(found.pdfs.tolist()) if label != BLANK]
    assert labels == [token for word in words for token in SPELLINGS[word]]


def scores_of(labels: str) -> np.ndarray:
    """Return scores that are 0 for the label of each frame, with `-` for the blank."""
    columns = ["-ab".index(label) for label in labels]
    scores = np.full((len(labels), TOKENS), -50.0, np.float32)
    scores[np.arange(len(labels)), columns] = 0
    return scores


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("aaaa", ["a"]),
        ("aa-a", ["a", "a"]),
        ("--a--", ["a"]),
        ("ba-a", ["b", "a", "a"]),
        ("----", []),
    ],
)
def test_equal_tokens_have_a_blank_between_them(labels: str, words: list[str]) -> None:
    text = [["a"], ["a", "a"], ["b", "a", "a"], []]
    model = estimate(text, ["a", "b"], 2)
    graph = expand_ctc(ngram_grammar(model, SPELLINGS), SPELLINGS, TOKENS)
    found = best_path(graph, scores_of(labels), WIDE)
    assert found is not None
    assert [word for word, *_ in found.words] == words


def test_times_of_words_reach_from_their_first_to_their_last_token() -> None:
    graph = expand_ctc(linear_grammar(["ab", "b"]), SPELLINGS, TOKENS)
    found = best_path(graph, scores_of("-a--bb-bb-"), WIDE)
    assert found is not None
    assert found.words == [("ab", 1, 6), ("b", 7, 9)]


def test_the_graph_grows_with_the_tokens_and_not_with_their_square() -> None:
    def arcs(count: int) -> int:
        words = {f"w{n}": [n + 1] for n in range(count)}
        every = [(0, word, 1.0, 0) for word in words]
        graph = expand_ctc(Grammar(1, every, [], {0: 1.0}), words, count + 1)
        return sum(graph.fst.num_arcs(state) for state in range(graph.fst.num_states))

    assert arcs(400) < 5 * arcs(100)


def test_a_word_without_a_spelling() -> None:
    for spellings in ({}, {"x": []}):
        with pytest.raises(InputError, match="'x' cannot be spelled by the model's"):
            expand_ctc(linear_grammar(["x"]), spellings, TOKENS)


def test_the_arcs_of_a_graph_are_counted_before_it_is_built() -> None:
    arcs = sum(GRAPH.fst.num_arcs(state) for state in range(GRAPH.fst.num_states))
    counted = count_arcs(ngram_grammar(MODEL, SPELLINGS), SPELLINGS)
    assert 0.5 * arcs < counted < 2 * arcs
