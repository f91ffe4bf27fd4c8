import pytest

from espnet_distopt.corpora.ldc.conv_tab import read_conv_tab, write_conv_tab
from tests.refusal import refuses

SPEAKERS = {
    "sw02001-A": "1020",
    "sw02001-B": "1044",
    "sw02005-A": "1044",
    "sw02005-B": "1094",
}


@pytest.mark.parametrize(
    "content",
    [
        "2001,Y,1020,1044,303,0,910304,1218,1222, ,\n2005,Y,1044,1094,349,0\n",
        '2001, "Y", 1020, 1044, 303, "SAID, ""HI"""\r\n2005, "Y", 1044, 1094\r\n',
        "conversation_no,active,caller_from,caller_to\n2001,Y,1020,1044\n\n"
        "2005,N,1044,1094\n",
    ],
    ids=["Kaldi's", "quoted, DOS line ends", "names of columns"],
)
def test_forms_of_the_table(tmp_path, content):
    (tmp_path / "conv.tab").write_bytes(content.encode())
    assert read_conv_tab(tmp_path / "conv.tab") == SPEAKERS


def test_written_and_read_back(tmp_path):
    path = tmp_path / "docs" / "conv.tab"
    write_conv_tab(path, SPEAKERS)
    assert path.read_text() == '2001, "Y", 1020, 1044\n2005, "Y", 1044, 1094\n'
    assert read_conv_tab(path) == SPEAKERS


BAD = {
    "missing": (None, "tab: no such file"),
    "empty": (b"", "tab: empty"),
    "only names of columns": (b"conversation_no,active\n", "tab: no conversations"),
    "too few fields": (b"2001,Y,1020,1044\n2005,Y,1044\n", "tab:2: expected 'conv"),
    "tabs": (b"2001\tY\t1020\t1044\n", "tab:1: expected 'conversation"),
    "PIN is a word": (b"2001,Y,M,1044\n", "tab:1: expected 'conversation"),
    "no PIN": (b"2001,Y,1020,\n", "tab:1: expected 'conversation"),
    "negative PIN": (b"2001,Y,1020,-1\n", "tab:1: expected 'conversation"),
    "conversation is a name": (b"sw2001,Y,1020,1044\n", "tab:1: expected"),
    "conversation twice": (
        b"2001,Y,1020,1044\n2001,Y,1,2\n",
        "tab:2: a second line of conversation 2001",
    ),
    "Latin-1": (b"2001,Y,1020,1044,caf\xe9\n", "tab:1: expected UTF-8"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables(tmp_path, kind):
    content, message = BAD[kind]
    refuses(read_conv_tab, tmp_path / "conv.tab", content, message)
