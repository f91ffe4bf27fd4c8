"""A graph that the machine has no memory for is refused before it is built."""

import math
from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.hmm import graph
from espnet_distopt.recipes.hmm.graph import (
    check_memory,
    count_arcs,
    expand,
    linear_grammar,
    ngram_grammar,
)
from espnet_distopt.recipes.hmm.ngram import estimate
from espnet_distopt.recipes.hmm.search import BestPath, Search, best_path
from tests.recipes.hmm.toy import (
    LEXICON,
    MODELS,
    STATES,
    phone_segments,
    scores,
    spoken,
)


def test_a_graph_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "meminfo"
    monkeypatch.setattr(graph, "_MEMORY", told)
    told.write_text("MemTotal:  9000000 kB\nMemAvailable:  1000000 kB\n")
    line = check_memory(4_000_000)
    assert line == "a graph of about 4,000,000 arcs takes 0.8 GB in each process"
    with pytest.raises(InputError, match=r"1\.2 GB .*, but this machine has 1\.0 GB"):
        check_memory(6_000_000)
    told.write_text("MemTotal:  9000000 kB\n")
    assert check_memory(6_000_000)
    told.unlink()  # as on a Mac
    assert check_memory(6_000_000)


# Graphs and their search: words, their times, and what a language model decides.

WIDE = Search(acoustic_scale=1.0, beam=1000.0)


def decode(text: list[list[str]], pdfs: list[int], wrong: float = -9.0) -> BestPath:
    grammar = ngram_grammar(estimate(text, LEXICON, 2), LEXICON)
    graph = expand(grammar, LEXICON, MODELS)
    found = best_path(graph, scores(pdfs, wrong), WIDE)
    assert found is not None
    return found


def test_words_and_their_times_with_silence_between_some_of_them() -> None:
    pdfs = spoken("SIL", "h", "ai", "oh", "SIL", "h", "ai")
    found = decode([["hi", "oh", "hi"]], pdfs)
    assert found.pdfs.tolist() == pdfs
    assert found.words == [("hi", 4, 12), ("oh", 12, 16), ("hi", 20, 28)]


def test_a_word_that_follows_itself_without_silence() -> None:
    pdfs = spoken("oh", "oh")
    assert decode([["oh", "oh"]], pdfs).words == [("oh", 0, 4), ("oh", 4, 8)]
    assert phone_segments(STATES, pdfs) == [("oh", 0, 4), ("oh", 4, 8)]


@pytest.mark.parametrize("likely", ["oh", "hello"])
def test_the_language_model_decides_between_homophones(likely: str) -> None:
    text = [["hi", "oh"], ["hi", "hello"], *[["hi", likely]] * 9]
    found = decode(text, spoken("h", "ai", "oh"))
    assert [word for word, *_ in found.words] == ["hi", likely]


def test_the_cost_of_the_best_path_is_that_of_its_parts() -> None:
    # With scores of 0 everywhere, only the graph's costs matter: of two sentences, the
    # shorter one has the same number of frames to stay in its states.
    grammar = linear_grammar(["oh"])
    graph = expand(grammar, LEXICON, MODELS)
    assert best_path(graph, np.zeros((2, len(STATES)), np.float32), WIDE) is None
    three = best_path(graph, np.zeros((3, len(STATES)), np.float32), WIDE)
    assert three is not None
    assert three.pdfs.tolist() == list(STATES.pdfs("oh"))


def test_another_pronunciation_is_found_in_forced_alignment() -> None:
    graph = expand(linear_grammar(["hello"]), LEXICON, MODELS)
    for phones in (("h", "oh"), ("oh",)):
        pdfs = spoken(*phones)
        found = best_path(graph, scores(pdfs), WIDE)
        assert found is not None
        assert found.pdfs.tolist() == pdfs


def test_ngram_states_back_off() -> None:
    model = estimate([["hi", "oh"]], LEXICON, 3)
    grammar = ngram_grammar(model, LEXICON)
    # The probability of a sentence that was never seen is found along backoff arcs.
    best = math.inf
    paths = [(0, ["oh", "hi"], 0.0)]
    while paths:
        state, left, cost = paths.pop()
        if not left and state in grammar.finals:
            best = min(best, cost + grammar.finals[state])
        for source, step, target in grammar.backoffs:
            if source == state:
                paths.append((target, left, cost + step))
        for source, word, step, target in grammar.words:
            if source == state and left[:1] == [word]:
                paths.append((target, left[1:], cost + step))
    assert best == pytest.approx(-model.sentence(["oh", "hi"]) * math.log(10))


def test_nothing_within_the_beam_reaches_an_end() -> None:
    graph = expand(linear_grammar(["hi", "hi"]), LEXICON, MODELS)
    narrow = Search(acoustic_scale=1.0, beam=0.01)
    assert best_path(graph, scores(spoken("oh"), -99.0), narrow) is None


def test_a_path_that_the_beam_has_lost_is_found_by_a_wider_one() -> None:
    """Speech that is cut within a word agrees with a path that is no sentence."""
    model = estimate([["hi", "hi"], ["hi"]], LEXICON, 2)
    graph = expand(ngram_grammar(model, LEXICON), LEXICON, MODELS)
    heard = scores(spoken("h", "ai", "h", "ai")[:13], -15.0)
    found = best_path(graph, heard, Search(acoustic_scale=1.0, beam=30.0))
    assert found is not None
    assert [word for word, *_ in found.words] == ["hi"]
    assert best_path(graph, heard, Search(acoustic_scale=1.0, beam=3.0)) is None


def test_a_word_without_pronunciation() -> None:
    with pytest.raises(InputError, match="'bye' has no pronunciation"):
        expand(linear_grammar(["bye"]), LEXICON, MODELS)
    with pytest.raises(InputError, match="none of the lexicon's words"):
        ngram_grammar(estimate([["x"]], ["x"], 1), LEXICON)


def test_options_are_above_zero() -> None:
    for name, least in (("acoustic_scale", 0), ("beam", 0), ("max_active", 1)):
        with pytest.raises(InputError, match=f"{name} must be above {least}, not"):
            Search(**{name: least})


def test_a_search_may_keep_very_few_paths() -> None:
    graph = expand(linear_grammar(["hi"]), LEXICON, MODELS)
    few = Search(acoustic_scale=1.0, beam=20.0, max_active=2)
    found = best_path(graph, scores(spoken("h", "ai"), -4.0), few)
    assert found is not None and [word for word, *_ in found.words] == ["hi"]


def test_a_penalty_keeps_a_noise_from_becoming_a_word() -> None:
    model = estimate([["hi", "oh"], ["hi"]], LEXICON, 2)
    heard = scores(spoken("h", "ai", "oh"), -4.0)
    found = []
    for penalty in (0.0, 20.0):
        graph = expand(ngram_grammar(model, LEXICON, penalty), LEXICON, MODELS)
        path = best_path(graph, heard, WIDE)
        assert path is not None
        found.append([word for word, *_ in path.words])
    assert found == [["hi", "oh"], ["hi"]]


def test_silence_has_no_words() -> None:
    model = estimate([["hi"], []], LEXICON, 2)
    graph = expand(ngram_grammar(model, LEXICON), LEXICON, MODELS)
    path = best_path(graph, scores(spoken("SIL", frames=9)), WIDE)
    assert path is not None
    assert path.words == []


def test_the_arcs_of_a_graph_are_counted_before_it_is_built() -> None:
    model = estimate([["hi", "oh"], ["hello", "hi", "oh"]], LEXICON, 3)
    grammar = ngram_grammar(model, LEXICON)
    fst = expand(grammar, LEXICON, MODELS).fst
    arcs = sum(fst.num_arcs(state) for state in range(fst.num_states))
    assert arcs <= count_arcs(grammar, LEXICON) <= 1.2 * arcs
