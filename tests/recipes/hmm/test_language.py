"""Lexicons and state lists, and what is refused of them."""

from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.commands.language import make_lang_command as main
from espnet_distopt.recipes.hmm.language import (
    read_language,
    read_lexicon,
    read_states,
    write_lexicon,
)
from tests.refusal import Refused

LEXICON = ";; a comment\noh ow\nhi h ay\noh o\n"


def make(
    root: Path, lexicon: str = LEXICON, text: str = "a hi oh\nb oh\n"
) -> list[str]:
    (root / "lexicon").write_text(lexicon, encoding="utf-8")
    (root / "text").write_text(text, encoding="utf-8")
    files = ["--lexicon", str(root / "lexicon"), "--text", str(root / "text")]
    return [*files, "--out", str(root / "lang"), "--order", "2"]


def test_a_directory_is_read_as_it_was_written(tmp_path: Path) -> None:
    main(make(tmp_path))
    language = read_language(tmp_path / "lang")
    assert language.lexicon == {"hi": [("h", "ay")], "oh": [("ow",), ("o",)]}
    assert language.states.phones == ("SIL", "ay", "h", "o", "ow")
    assert language.states.names()[:4] == ["SIL_0", "SIL_1", "SIL_2", "ay_0"]
    assert language.ngram.order == 2
    write_lexicon(tmp_path / "again", language.lexicon)
    assert read_lexicon(tmp_path / "again") == language.lexicon


@pytest.mark.parametrize(
    ("lexicon", "message"),
    [
        ("oh ow\nhi\n", "lexicon:2: hi has no phones"),
        ("oh ow\noh SIL\n", "lexicon:2: oh has the phone SIL"),
        ("oh ow\nhi h\noh ow\n", "lexicon:3: this pronunciation of oh comes twice"),
        (";; nothing\n", "lexicon: no words"),
        ("oh ow\n", "text: the lexicon lacks 1 of its words, the first is 'hi'"),
    ],
)
def test_a_malformed_lexicon_leaves_nothing(
    tmp_path: Path, lexicon: str, message: str, refused: Refused
) -> None:
    assert message in refused(main, make(tmp_path, lexicon))
    assert not (tmp_path / "lang").exists()


def test_an_order_below_one(tmp_path: Path, refused: Refused) -> None:
    cmd = [*make(tmp_path), "--order", "0"]
    assert "order of an n-gram is at least 1" in refused(main, cmd)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SIL_0\nSIL_1\nSIL_3\n", "states:3: expected the state SIL_2, got 'SIL_3'"),
        ("SIL_0\nSIL_1\nSIL_2\na_0\n", "states: expected 3 states of SIL"),
        ("a_0\na_1\na_2\n", "states: expected 3 states of SIL"),
        ("SIL_0\nSIL_1\nSIL_2\n" * 2, "a phone comes twice"),
    ],
)
def test_malformed_states(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "states"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_states(path)
