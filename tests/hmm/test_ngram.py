"""ARPA files: what is written is read again, and malformed ones are told by line."""

from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.hmm.kneser_ney import estimate
from espnet_distopt.hmm.ngram import Ngram, read_arpa, read_words, write_arpa

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
    ("ngram 1=3", "ngram 1=three", r":2: expected 'ngram 1=COUNT'"),
    ("ngram 1=3", "ngram 1=4", r":10: 1 1-grams less than the head"),
    ("ngram 2=2", "ngram 2=1", r":14: 1 2-grams more than the head"),
    ("-0.2 a -0.1", "-0.2 a b c", r":8: expected a 1-gram"),
    ("-0.2 a -0.1", "x a -0.1", r":8: expected numbers"),
    ("-0.2 a -0.1", "nan a -0.1", r":8: expected finite"),
    ("-0.2 a -0.1", "0.2 a -0.1", r":8: expected finite log10 values, a probability"),
    ("-0.4 a </s>", "-0.4 z </s>", r":12: the history z is not there"),
    ("-0.4 a </s>", "-0.4 <s> a", r":12: this n-gram comes twice"),
    ("\\end\\\n", "", r"ends without \\end\\"),
    ("-0.5 </s>", "-0.5 end", r"no probability of </s>"),
    ("\n\\2-grams:\n-0.1 <s> a\n-0.4 a </s>\n", "", r"the 2-grams are missing"),
    ("\\1-grams:", "\\3-grams:", r":5: expected 'ngram 3=COUNT'"),
]


@pytest.mark.parametrize(("old", "new", "message"), MALFORMED)
def test_a_malformed_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path / "lm.arpa", GOOD.replace(old, new))
    assert "\n" not in str(error.value)
