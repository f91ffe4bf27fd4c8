"""ARPA files: what is written is read again, and malformed ones are told by line."""

import math
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.hmm.ngram import (
    BEGIN,
    END,
    Ngram,
    estimate,
    read_arpa,
    read_words,
    write_arpa,
)

GOOD = """\\data\\
ngram 1=3
ngram 2=2

\\1-grams:
-99 <s> -0.3
-0.5 </s>
-0.2 a -0.1

\\2-grams:
-0.1 <s> a
-0.4 a </s>

\\end\\
"""


def read(path: Path, text: str) -> Ngram:
    path.write_text(text, encoding="utf-8")
    return read_arpa(path)


def test_a_file_of_another_program(tmp_path: Path) -> None:
    model = read(tmp_path / "lm.arpa", f"made by hand\n{GOOD}".partition("\n")[2])
    assert model.order == 2
    assert model.log10("a", ("<s>",)) == -0.1
    assert model.log10("a", ("a",)) == pytest.approx(-0.1 - 0.2)
    assert model.sentence(["a"]) == pytest.approx(-0.1 - 0.4)


def test_a_written_model_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    model = estimate([["a", "b", "a"], ["b"]], "abc", 3)
    write_arpa(tmp_path / "lm.arpa", model)
    again = read_arpa(tmp_path / "lm.arpa")
    assert again.order == 3
    assert again.probabilities == pytest.approx(model.probabilities, abs=1e-6)
    assert again.backoffs == pytest.approx(model.backoffs, abs=1e-6)


def test_the_words_alone(tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(f"\n{GOOD}", encoding="utf-8")
    assert read_words(path) == ["<s>", "</s>", "a"]
    path.write_bytes(b"mmap lm http://kheafield.com/code\n\xff")
    assert read_words(path) is None
    with pytest.raises(InputError, match=r"no.arpa: cannot be read: No such file"):
        read_words(tmp_path / "no.arpa")


MALFORMED = [
    ("\\data\\\n", "", r"expected \\data\\ first"),
    ("ngram 2=2", "ngram 3=2", r":3: expected 'ngram 2=COUNT'"),
    ("ngram 1=3", "ngram 1=4", r":10: 1 1-grams less than the head"),
    ("ngram 2=2", "ngram 2=1", r":14: 1 2-grams more than the head"),
    ("-0.2 a -0.1", "-0.2 a b c", r":8: expected a 1-gram"),
    ("-0.2 a -0.1", "x a -0.1", r":8: expected numbers"),
    ("-0.2 a -0.1", "0.2 a -0.1", r":8: expected finite log10 values, a probability"),
    ("-0.4 a </s>", "-0.4 z </s>", r":12: the history z is not there"),
    ("-0.4 a </s>", "-0.4 <s> a", r":12: this n-gram comes twice"),
    ("\\end\\\n", "", r"ends without \\end\\"),
    ("-0.5 </s>", "-0.5 end", r"no probability of </s>"),
    ("\n\\2-grams:\n-0.1 <s> a\n-0.4 a </s>\n", "", r"the 2-grams are missing"),
]


@pytest.mark.parametrize(("old", "new", "message"), MALFORMED)
def test_a_malformed_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path / "lm.arpa", GOOD.replace(old, new))
    assert "\n" not in str(error.value)


# The estimator against numbers worked out by hand, and against its own definition.

TEXT = [s.split() for s in ("a b", "a c", "b")]

# By hand, for bigrams. Their counts: <s>a 2, <s>b 1, ab 1, ac 1, b</s> 2, c</s> 1. So
# n1 = 4, n2 = 2 and D = 4 / 8 = 1/2. Words before: a 1 (<s>), b 2, c 1, </s> 2. So
# n1 = 2, n2 = 2 and D = 2 / 6 = 1/3. The sum is 6, and 4 D / 6 = 2/9 goes to 4 words.
UNIGRAMS = {
    "a": Fraction(2, 3) / 6 + Fraction(1, 18),
    "b": Fraction(5, 3) / 6 + Fraction(1, 18),
    "c": Fraction(2, 3) / 6 + Fraction(1, 18),
    END: Fraction(5, 3) / 6 + Fraction(1, 18),
}
HALF = Fraction(1, 2)
BIGRAMS = {
    (BEGIN, "a"): (2 - HALF) / 3 + 2 * HALF / 3 * UNIGRAMS["a"],
    (BEGIN, "b"): (1 - HALF) / 3 + 2 * HALF / 3 * UNIGRAMS["b"],
    ("a", "b"): (1 - HALF) / 2 + 2 * HALF / 2 * UNIGRAMS["b"],
    ("b", END): (2 - HALF) / 2 + HALF / 2 * UNIGRAMS[END],
    # not seen: the weight of the history times the unigram
    ("b", "a"): HALF / 2 * UNIGRAMS["a"],
    (BEGIN, "c"): 2 * HALF / 3 * UNIGRAMS["c"],
}


@pytest.mark.parametrize("gram", [*BIGRAMS, *((word,) for word in UNIGRAMS)])
def test_the_numbers_are_those_worked_out_by_hand(gram: tuple[str, ...]) -> None:
    model = estimate(TEXT, "abc", 2)
    if len(gram) == 1:
        found = 10 ** model.probabilities[gram]
        assert found == pytest.approx(float(UNIGRAMS[gram[0]]))
    else:
        found = 10 ** model.log10(gram[1], gram[:1])
        assert found == pytest.approx(float(BIGRAMS[gram]))


def test_a_word_that_only_the_vocabulary_has_gets_its_share_of_the_uniform_part() -> (
    None
):
    model = estimate(TEXT, "abcz", 1)
    # Counts: a 2, b 2, c 1, </s> 3. So D = 1/5, and 4 D / 8 goes to five words.
    assert 10 ** model.log10("z", ()) == pytest.approx(4 * 0.2 / 8 / 5)


SENTENCES = st.lists(st.lists(st.sampled_from("abcd"), max_size=5), min_size=1)


@given(SENTENCES, st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_words_after_any_history_sum_to_one(
    text: list[list[str]], order: int, choice: random.Random
) -> None:
    model = estimate(text, "abcd", order)
    history = (BEGIN, *choice.choice(text))[: choice.randrange(5) + 1]
    total = sum(10 ** model.log10(word, history) for word in [*"abcd", END])
    assert math.isclose(total, 1, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("text", "order", "message"),
    [
        ([], 2, "no sentences"),
        ([["a"]], 0, "at least 1, not 0"),
        ([["a", "x"]], 2, "'x' is in the text, but not in the vocabulary"),
    ],
)
def test_what_cannot_be_estimated(
    text: list[list[str]], order: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        estimate(text, "abc", order)
