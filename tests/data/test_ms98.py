import pytest

from espnet_distopt.data.ms98 import (
    Segment,
    plain_words,
    read_transcript,
    write_transcript,
)
from espnet_distopt.errors import InputError

NAME = "sw2001A-ms98-a-trans.text"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[silence]", ""),
        ("hi um yeah I'd like", "hi um yeah i'd like"),
        ("[noise] [vocalized-noise] oh [laughter]", "oh"),
        ("[laughter-yeah] sure", "yeah sure"),
        ("th[is]- -[th]is w[e]-", "th- -is w-"),
        ("[laughter-th[at]-] no", "th- no"),
        ("{alrighty} then", "alrighty then"),
        ("let them_1 about_1", "let them about"),
        ("[it'n/isn't] [lem[guini]-/linguini]", "it'n lem-"),
        ("<b_aside> wait <e_aside> okay", "wait okay"),
        ("uh-huh", "uh-huh"),
    ],
)
def test_plain_words(text, words):
    assert plain_words(text) == words.split()


def test_written_as_the_release_writes_and_read_back(tmp_path):
    segments = [Segment(0.0, 0.977625, "[silence]"), Segment(0.977625, 11.561375, "hi")]
    write_transcript(tmp_path, "2001", "A", segments)
    path = tmp_path / "20" / "2001" / NAME
    assert path.read_text().splitlines() == [
        "sw2001A-ms98-a-0001 0.000000 0.977625 [silence]",
        "sw2001A-ms98-a-0002 0.977625 11.561375 hi",
    ]
    assert read_transcript(path) == segments


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (NAME, "", "text: empty transcript"),
        ("notes.text", "x", "not named like"),
        (NAME, "sw2001A-ms98-a-0001 0.0 1.0 hi\nhello\n", "text:2: expected 'sw2001A"),
        (NAME, "sw2001A-ms98-a-0001 0.0 1.0\n", "text:1: expected"),
        (NAME, "sw2001A-ms98-a-0001 zero 1.0 hi\n", "text:1: expected"),
        (
            NAME,
            "sw2001B-ms98-a-0001 0.0 1.0 hi\n",
            "text:1: expected a segment of sw2001A",
        ),
        (NAME, "sw2001A-ms98-a-0001 2.0 1.0 hi\n", "text:1: .* before its start"),
        (
            NAME,
            "sw2001A-ms98-a-0001 2.0 3.0 hi\nsw2001A-ms98-a-0002 1.0 2.0 hi\n",
            "text:2: starts before",
        ),
    ],
)
def test_bad_transcripts(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_transcript(tmp_path / name)
