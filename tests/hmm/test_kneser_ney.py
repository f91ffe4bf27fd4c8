"""The estimator against numbers worked out by hand, and against its own definition."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.hmm.kneser_ney import estimate
from espnet_distopt.hmm.ngram import BEGIN, END

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
