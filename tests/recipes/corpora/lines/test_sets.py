"""Tables of lines."""

from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.lines.sets import (
    LineDir,
    TextLine,
    plain_id,
    summarize,
)


def test_round_trip(tmp_path: Path) -> None:
    lines = [
        TextLine("bob-2", "my images/2.png", "caf\u00e9 au lait", "bob"),
        TextLine("ann-1", "1.png", "", "ann"),
    ]
    data = LineDir.of(lines, {"ann-9": "lost"})
    data.write(tmp_path / "data")
    data.write(tmp_path / "data")
    found = LineDir.read(tmp_path / "data")
    assert (found.images, found.text, found.utt2spk) == (
        data.images,
        data.text,
        data.utt2spk,
    )
    assert (tmp_path / "data" / "skipped.txt").read_text() == "ann-9 lost\n"
    assert (tmp_path / "data" / "spk2utt").read_text() == "ann ann-1\nbob bob-2\n"


def test_one_id_for_two_lines() -> None:
    line = TextLine("a", "a.png", "x", "a")
    with pytest.raises(InputError, match=r"two lines are called a: a\.png"):
        LineDir.of([line, line])


def test_bad_tables_are_not_written(tmp_path: Path) -> None:
    lines = LineDir(images={"a": "a.png"}, text={"a": "x"}, utt2spk={"a": "b"})
    with pytest.raises(InputError, match="utterance a must start with its speaker, b"):
        lines.write(tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_ids_have_no_blanks() -> None:
    assert plain_id("page 1/line 2") == "page_1-line_2"


def test_summary_counts_characters_that_were_not_trained() -> None:
    def lines(*texts: str) -> LineDir:
        return LineDir.of(
            [TextLine(f"a{n}", "x", text, "a") for n, text in enumerate(texts)],
            {"b": "lost"},
        )

    rows = summarize({"train": lines("ab", "a b"), "test": lines("abcc")}).split("\n")
    assert rows[1].split() == ["train", "2", "1", "5", "3", "0", "1"]
    assert rows[2].split() == ["test", "1", "1", "4", "3", "2", "1"]
