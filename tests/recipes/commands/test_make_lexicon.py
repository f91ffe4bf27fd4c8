"""The lexicon of texts that spell acronyms out, as those of Switchboard."""

from pathlib import Path

from espnet_distopt.recipes.commands import language

DICTIONARY = """\
us ah s
US y uw eh s
AM ey eh m
am ae m
TV t iy v iy
IBM ay b iy eh m
a ax
as ae z
"""


def test_acronyms_are_letters_and_no_words(tmp_path: Path) -> None:
    text, dictionary = tmp_path / "text", tmp_path / "dictionary"
    text.write_text("a the us am tv a\nb i b m's v c rs as f's\n")
    dictionary.write_text(DICTIONARY)
    out = tmp_path / "lexicon.txt"
    cmd = ["--text", str(text), "--dictionary", str(dictionary), "--out", str(out)]
    language.make_lexicon_command(cmd)
    assert out.read_text().splitlines() == [
        *["a ax", "a ey", "am ae m", "as ae z", "b b iy", "c s iy", "f's eh f s"],
        *["i ay", "m's eh m z", "rs aa r z", "the SPN", "tv t iy v iy", "us ah s"],
        "v v iy",
    ]
