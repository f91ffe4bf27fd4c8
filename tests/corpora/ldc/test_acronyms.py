import pytest

from espnet_distopt.corpora.ldc.acronyms import read_acronyms, spoken_letter
from tests.refusal import refuses

DICTIONARY = """
# word pronunciation
IBM ay b iy eh m
IBM's ay b iy eh m z
IBM_1 ay b iy m
VCRs v iy s iy aa r z
AWOL's ey w ow l z
[laughter-TV] t iy v iy
PBS p iy b iy eh s
PBS's p iy b iy eh s ih z
W d ah b ax l y uw
US y uw eh s
us ah s
IT ay t iy
it ih t
NASA n ae s ax
AT&T ey t iy ae n d t iy
ok ow k ey
ocelots aa s ax l aa t s
"""


@pytest.fixture
def acronyms(tmp_path):
    (tmp_path / "sw-ms98-dict.text").write_text(DICTIONARY)
    return read_acronyms(tmp_path / "sw-ms98-dict.text")


@pytest.mark.parametrize(
    ("word", "spelled"),
    [
        ("IBM", "i b m"),
        ("ibm", "i b m"),
        ("IBM's", "i b m's"),
        ("ibm's", "i b m's"),
        ("VCRs", "v c rs"),
        ("TV", "t v"),
        ("PBS", "p b s"),
        ("US", "u s"),
        ("IT", "i t"),
        ("ok", "o k"),
    ],
)
def test_spelled_as_spoken(acronyms, word, spelled):
    assert acronyms[word] == spelled


@pytest.mark.parametrize(
    "word",
    ["us", "it", "NASA", "nasa", "AWOL's", "PBS's", "AT&T", "W", "ocelots", "OK"],
)
def test_not_acronyms(acronyms, word):
    assert word not in acronyms


def test_names_of_all_letters(tmp_path):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    (tmp_path / "dict").write_text(
        f"{alphabet} ey b iy s iy d iy iy eh f jh iy ey ch ay jh ey k ey eh l eh m "
        "eh n ow p iy k y uw aa r eh s t iy y uw v iy d ah b ax l y uw eh k s w ay z iy"
    )
    assert read_acronyms(tmp_path / "dict")[alphabet] == " ".join(alphabet.lower())


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("w", "d ah b ax l y uw"),
        ("m's", "eh m z"),
        ("rs", "aa r z"),
        ("f's", "eh f s"),
        ("h's", "ey ch ih z"),
        ("x's", "eh k s ih z"),
    ],
)
def test_spoken_letters(word, phones):
    assert spoken_letter(word) == tuple(phones.split())


@pytest.mark.parametrize("word", ["", "'s", "us's", "bm", "ss's", "é"])
def test_no_letters(word):
    assert spoken_letter(word) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, ": no such file"),
        (b"", ": empty"),
        (b"IBM ay b iy eh m\nTV\n", ":2: expected a word and its phones"),
        (b"IBM\xff ay\n", ":1: expected UTF-8"),
    ],
)
def test_bad_dictionaries(tmp_path, content, message):
    refuses(read_acronyms, tmp_path / "dict", content, f"dict{message}")
