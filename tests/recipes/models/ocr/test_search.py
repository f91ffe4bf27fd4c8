"""The scores of a character n-gram are those of its ARPA file, for every prefix."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.commands.language import make_ngram_command as make_ngram
from espnet_distopt.recipes.hmm.ngram import (
    BEGIN,
    Ngram,
    estimate,
    read_arpa,
    write_arpa,
)
from espnet_distopt.recipes.models.ocr import search
from espnet_distopt.recipes.models.ocr.search import NgramScorer, load_ngram

TOKENS = ["<blank>", "<unk>", "<space>", "a", "b", "c", "<sos/eos>"]
SENTENCES = [["a", "b", "<space>", "a", "b"], ["c", "a"], ["b", "<space>", "a", "c"]]
MODELS = {n: estimate(SENTENCES, TOKENS[1:-1], n) for n in (1, 2, 4)}


@given(
    order=st.sampled_from(sorted(MODELS)),
    prefix=st.lists(st.integers(1, 5), max_size=6).map(tuple),
)
@settings(max_examples=100)
def test_the_scores_of_a_prefix(order: int, prefix: tuple[int, ...]) -> None:
    model = MODELS[order]
    scorer = NgramScorer(model, TOKENS)
    history = (BEGIN, *(TOKENS[token] for token in prefix))
    words = [*TOKENS[1:-1], "</s>"]
    expected = [model.log10(word, history) * math.log(10) for word in words]
    found = scorer(prefix)
    assert found.shape == (len(TOKENS),)
    np.testing.assert_allclose(found[1:], expected)
    np.testing.assert_allclose(np.exp(found[1:]).sum(), 1)
    assert scorer.ending(prefix) == found[-1]


def test_a_token_that_the_ngram_lacks_is_unknown_to_it() -> None:
    model = estimate([["a", "<unk>"]], ["a", "b", "<unk>"], 2)
    scores = NgramScorer(model, TOKENS)((3,))
    assert scores[2] == scores[5] == scores[1] > scores[4]


def without(word: str, path: Path) -> Path:
    kept = estimate([["a", "b"]], {*TOKENS[1:-1]} - {word}, 2)
    write_arpa(path, kept)
    return path


def test_a_file_must_have_the_models_tokens(tmp_path: Path) -> None:
    found = load_ngram(without("c", tmp_path / "c.arpa"), TOKENS)((3,))
    assert found[5] == found[1]
    found = load_ngram(without("<unk>", tmp_path / "unk.arpa"), TOKENS)((3,))
    assert found[1] < -200 and found[5] > -20
    write_arpa(tmp_path / "x.arpa", estimate([["a"]], ["a", "b"], 2))
    with pytest.raises(InputError, match=r"x\.arpa: no probability of '<space>', a to"):
        load_ngram(tmp_path / "x.arpa", TOKENS)


def test_a_unigram_has_no_history() -> None:
    scorer = NgramScorer(Ngram(1, {("a",): -0.3, ("</s>",): -0.3}, {}), TOKENS)
    assert scorer(())[3] == scorer((3, 3))[3] == pytest.approx(-0.3 * math.log(10))


def test_forgotten_histories_have_the_same_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefixes = list(itertools.product(range(1, 6), repeat=3))
    whole = NgramScorer(MODELS[4], TOKENS)
    expected = [whole(prefix) for prefix in prefixes]
    monkeypatch.setattr(search, "MOST_KNOWN", 5)
    forgetful = NgramScorer(MODELS[4], TOKENS)
    for prefix, scores in zip(prefixes, expected, strict=True):
        np.testing.assert_array_equal(forgetful(prefix), scores)
        assert len(forgetful._known) <= 5 + MODELS[4].order


def test_a_text_of_another_normal_form_is_composed(tmp_path: Path) -> None:
    tokens = ["<blank>", "<unk>", "\u00e4", "<sos/eos>"]
    (tmp_path / "tokens.txt").write_text("\n".join(tokens) + "\n")
    (tmp_path / "text").write_text("1 a\u0308\n")
    arguments = ["--text", "text", "--token_list", "tokens.txt", "--out", "arpa"]
    make_ngram([word if "-" in word else str(tmp_path / word) for word in arguments])
    model = read_arpa(tmp_path / "arpa")
    assert model.sentence(["\u00e4"]) > model.sentence(["<unk>"])
