"""The words of a conversation side, and the segments they belong to."""

from pathlib import Path

from espnet_distopt.recipes.corpora.hub5.ctm import Word
from espnet_distopt.recipes.scoring.sides import add_words, read_sides

STM = "x A s 0.00 4.00 oh and i\nx A s 4.00 9.00 T. V. i know\n"


def test_a_letter_is_spelled_beside_those_of_its_segment(tmp_path: Path) -> None:
    stm = tmp_path / "stm"
    stm.write_text(STM)
    sides = read_sides(stm)
    said = ["oh", "and", "i", "t", "v", "i", "know"]
    words = [Word("x", "A", 1.0 + n, 0.5, word) for n, word in enumerate(said)]
    add_words(sides, words, stm, tmp_path / "ctm")
    assert sides["x-A"].segments() == [
        ("oh and i", ["oh", "and", "i"]),
        ("T. V. i know", ["t.", "v.", "i", "know"]),
    ]


def test_one_letter_with_a_period_among_many_spells_no_others(tmp_path: Path) -> None:
    stm = tmp_path / "stm"
    stm.write_text(f"{STM}x A s 9.00 12.00 the c i a and the n b a\n")
    sides = read_sides(stm)
    words = [Word("x", "A", 9.5, 0.5, "t"), Word("x", "A", 10.5, 0.5, "v")]
    add_words(sides, words, stm, tmp_path / "ctm")
    assert [word.word for word in sides["x-A"].words] == ["t", "v"]
