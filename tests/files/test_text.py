"""Text files are read whole or refused; their data lines know where they stand."""

from pathlib import Path

import pytest

from espnet_distopt.files.text import data_lines, read_bytes, read_text
from tests.refusal import refuses

BAD = [
    (None, "text: no such file"),
    (b"", "text: empty"),
    (b" \n\t\r\n", "text: empty"),
    (b"\xef\xbb\xbf\n", "text: empty"),
    (b"a\nb\nna\xefve\n", "text:3: expected UTF-8 text; .* iconv -f LATIN1"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_what_is_no_text_is_refused(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    refuses(read_text, tmp_path / "text", content, message)


def test_a_text_may_be_empty_where_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbf\n")
    assert read_text(tmp_path / "text", may_be_empty=True) == "\n"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    with pytest.raises(ValueError, match="text: cannot be read: Is a directory"):
        read_bytes(tmp_path / "text")


def test_the_mark_of_an_editor_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfutt1 \xef\xbb\xbfone\n")
    assert read_text(tmp_path / "text") == "utt1 \ufeffone\n"


def test_data_lines_have_their_places() -> None:
    # \x85 and \u2028 break lines for Python, but not in a corpus.
    text = ";; head\n\nc\x85d\u2028e \r\n  \n;last\n"
    path = Path("a")
    assert list(data_lines(text, path)) == [("a:3", "c\x85d\u2028e "), ("a:5", ";last")]
    assert list(data_lines(text, path, comment=";")) == [("a:3", "c\x85d\u2028e ")]
