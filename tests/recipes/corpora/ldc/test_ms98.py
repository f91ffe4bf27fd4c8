import pytest

from espnet_distopt.recipes.corpora.ldc.ms98 import (
    Entry,
    Ms98Segment,
    find_acronyms,
    plain_words,
    read_dictionary,
    read_transcript,
    spoken_letter,
    write_dictionary,
    write_transcript,
)
from tests.refusal import refuses

TRANS = "sw2001A-ms98-a-trans.text"
DICT = "sw-ms98-dict.text"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # marks of sounds
        ("[silence]", ""),
        ("[noise] [vocalized-noise] oh [laughter]", "oh"),
        ("[SILENCE] Okay [Noise]", "okay"),
        # asides: the marks go, the words stay
        ("<b_aside> wait <e_aside> okay", "wait okay"),
        ("<B_ASIDE> come here <E_ASIDE>", "come here"),
        # words as they are
        ("hi um yeah I'd like", "hi um yeah i'd like"),
        ("uh-huh um-hum huh-uh", "uh-huh um-hum huh-uh"),
        ("Texas AT&T", "texas at&t"),
        # spoken with a laugh
        ("[laughter-yeah] sure", "yeah sure"),
        ("[laughter-um-hum]", "um-hum"),
        ("[laughter-that's]", "that's"),
        ("[laughter-th[at]-] no", "th- no"),
        ("[laughter-[it'n/isn't]]", "it'n"),
        ("[laughter-so]-", "so-"),
        # partial words
        ("th[is]- w[e]-", "th- w-"),
        ("ab[solute]", "ab-"),
        ("-[th]is [an]y", "-is -y"),
        ("-[a]b[out]-", "-b-"),
        ("-[40]1k", "-1k"),
        ("ex[specially]-/especially]", "ex"),
        ("mother-in-l[aw]-", "mother-in-l-"),
        ("ammu[n]it- re[al]ly", "ammu-it- re-ly"),
        # said / meant
        ("[it'n/isn't]", "it'n"),
        ("[said/meant]-", "said-"),
        ("[lem[guini]-/linguini]", "lem-"),
        # coinages
        ("{yuppiedom} then", "yuppiedom then"),
        ("[laughter-{alrighty}]", "alrighty"),
        # one of several pronunciations
        ("let them_1 about_1", "let them about"),
        ("them_1's", "them's"),
        # Fisher's acronyms, and other dots
        ("i._b._m. t._v.'s mr. x", "i b m t v's mr x"),
    ],
)
def test_plain_words(text, words):
    assert plain_words(text) == words.split()


def test_acronyms_are_spelled_in_the_case_of_the_text():
    acronyms = {"IBM": "i b m", "IT": "i t", "TV's": "t v's"}
    text = "IBM ibm it's it IT [laughter-IBM] TV's I_1"
    expected = "i b m ibm it's it i t i b m t v's i"
    assert plain_words(text, acronyms) == expected.split()


def test_written_as_the_release_writes_and_read_back(tmp_path):
    segments = [
        Ms98Segment(0.0, 0.977625, "[silence]"),
        Ms98Segment(0.977625, 11.561375, "hi"),
    ]
    write_transcript(tmp_path, "2001", "A", segments)
    path = tmp_path / "20" / "2001" / TRANS
    assert path.read_text().splitlines() == [
        "sw2001A-ms98-a-0001 0.000000 0.977625 [silence]",
        "sw2001A-ms98-a-0002 0.977625 11.561375 hi",
    ]
    assert read_transcript(path) == segments
    assert read_transcript(path)[1].where == f"{path}:2"


def test_dictionary_written_and_read_back(tmp_path):
    entries = [Entry("IBM", ("ay", "b", "iy", "eh", "m")), Entry("them_1", ("eh", "m"))]
    write_dictionary(tmp_path, entries)
    assert read_dictionary(tmp_path / DICT) == entries


def test_dictionary_with_comments_blanks_and_two_pronunciations(tmp_path):
    (tmp_path / DICT).write_text(
        "\n# words\n\n-[an]y   iy \nread r iy d\nread r eh d\n"
    )
    entries = read_dictionary(tmp_path / DICT)
    assert [entry.word for entry in entries] == ["-[an]y", "read", "read"]
    assert entries[0].phones == ("iy",)


def line(number, start, end, text="hi", side="2001A"):
    return f"sw{side}-ms98-a-{number:04d} {start} {end} {text}\n"


BAD_SIDES = {
    "empty": ("", "text: empty"),
    "no such line": (line(1, 0.0, 1.0) + "hello\n", "text:2: expected 'sw2001A"),
    "no text": ("sw2001A-ms98-a-0001 0.0 1.0\n", "text:1: expected"),
    "time is a word": (line(1, "zero", 1.0), "text:1: expected"),
    "negative time": (line(1, -1.0, 1.0), "text:1: expected"),
    "Kaldi's id": ("sw02001-A_000000-000100 0.0 1.0 hi\n", "text:1: expected"),
    "other side": (
        line(1, 0, 1, side="2001B"),
        "text:1: expected a segment of sw2001A",
    ),
    "other conversation": (line(1, 0, 1, side="2002A"), "got one of sw2002A"),
    "ends before start": (line(1, 2.0, 1.0), "text:1: ends at 1.0 s, before its start"),
    "Latin-1": (line(1, 0, 1) + line(2, 1, 2, "caf\xe9"), "text:2: expected UTF-8"),
}


@pytest.mark.parametrize("kind", BAD_SIDES)
def test_bad_sides(tmp_path, kind):
    content, message = BAD_SIDES[kind]
    refuses(read_transcript, tmp_path / TRANS, content.encode("latin-1"), message)


@pytest.mark.parametrize(
    ("read", "name", "content", "message"),
    [
        (read_transcript, TRANS, None, "no such file"),
        (read_dictionary, DICT, "# nothing\n", "text: only comments"),
        (read_dictionary, DICT, "# a\nhi hh ay\nIBM\n", "text:3: expected a word and"),
        (read_dictionary, DICT, "IBM 4 5\n", "text:1: expected a word and its phones"),
        (read_dictionary, DICT, "hi hh ay\ncaf\xe9 k ae\n", "text:2: expected UTF-8"),
    ],
)
def test_bad_files(tmp_path, read, name, content, message):
    raw = None if content is None else content.encode("latin-1")
    refuses(read, tmp_path / name, raw, message)


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
    return find_acronyms(read_dictionary(tmp_path / "sw-ms98-dict.text"))


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
    found = find_acronyms(read_dictionary(tmp_path / "dict"))
    assert found[alphabet] == " ".join(alphabet.lower())


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
