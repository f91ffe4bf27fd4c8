"""Switchboard in miniature: real file names and formats, silent recordings."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.kaldi.directory import (
    SpeechSet,
    Utterance,
    summarize,
    to_data_dir,
    utterance_id,
)
from espnet_distopt.recipes.corpora.ldc.discs import find_files
from espnet_distopt.recipes.corpora.ldc.ms98 import (
    Entry,
    Ms98Segment,
    write_dictionary,
    write_transcript,
)
from espnet_distopt.recipes.corpora.ldc.swbd import (
    cap_duplicates,
    read_conv_tab,
    read_swb1,
    split_dev,
    write_conv_tab,
)
from tests.refusal import refuses


def write_call(path, channels=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sphere(path, np.zeros((80_000, channels), np.int16), 8000)


def segments(*texts):
    return [Ms98Segment(float(n), n + 1.0, text) for n, text in enumerate(texts)]


TRANSCRIPTS = "transcriptions/swb_ms98_transcriptions"


@pytest.fixture
def swb1(tmp_path):
    """Two calls on two discs; side A of each says yeah twice."""
    root = tmp_path / "swb1"
    ibm = Entry("IBM", ("ay", "b", "iy", "eh", "m"))
    write_dictionary(root / TRANSCRIPTS, [ibm])
    for disc, number in (("swb1_d1", "2001"), ("swb1_d2", "2005")):
        write_call(root / disc / "data" / f"sw0{number}.sph")
        transcripts = root / TRANSCRIPTS
        said = segments("[silence]", "yeah", "[noise] yeah")
        write_transcript(transcripts, number, "A", said)
        said = [Ms98Segment(0.977625, 11.561375 - 2, "hi um th[is]- [laughter-story]")]
        write_transcript(transcripts, number, "B", said)
    return root


def test_ids_words_and_sides(swb1):
    corpus = read_swb1(swb1)
    assert [(u.id, u.side, u.text) for u in corpus.utterances[:3]] == [
        ("sw02001-A_000100-000200", "sw02001-A", "yeah"),
        ("sw02001-A_000200-000300", "sw02001-A", "yeah"),
        ("sw02001-B_000098-000956", "sw02001-B", "hi um th- story"),
    ]
    third = corpus.utterances[2]
    assert (third.start, third.end) == (0.98, 9.56)
    assert len(corpus.utterances) == 6
    assert sorted(corpus.audio) == ["sw02001", "sw02005"]


def test_discs_may_be_links(swb1, tmp_path):
    (tmp_path / "linked").mkdir()
    for disc in swb1.iterdir():
        (tmp_path / "linked" / disc.name).symlink_to(disc)
    assert len(read_swb1(tmp_path / "linked").utterances) == 6


def test_an_end_just_past_the_recording_is_cut_and_its_id_kept(swb1):
    write_transcript(swb1 / TRANSCRIPTS, "2001", "B", [Ms98Segment(9.0, 10.3, "bye")])
    bye = read_swb1(swb1).utterances[2]
    assert (bye.id, bye.end) == ("sw02001-B_000900-001030", 10.0)


def test_transcripts_may_lie_elsewhere(swb1, tmp_path):
    expected = read_swb1(swb1).utterances
    (swb1 / "transcriptions").rename(tmp_path / "text")
    assert read_swb1(swb1, tmp_path / "text").utterances == expected
    with pytest.raises(InputError, match="swb1: no transcripts"):
        read_swb1(swb1)


def test_acronyms_are_spelled_out(swb1):
    write_transcript(swb1 / TRANSCRIPTS, "2001", "A", segments("at IBM [laughter-IBM]"))
    assert read_swb1(swb1).utterances[0].text == "at i b m i b m"


def test_silence_may_pass_the_end_of_the_recording(swb1):
    said = [Ms98Segment(0, 9, "bye"), Ms98Segment(9, 12, "[silence]")]
    write_transcript(swb1 / TRANSCRIPTS, "2001", "B", said)
    assert read_swb1(swb1).utterances[2].text == "bye"


@pytest.mark.parametrize(
    ("seconds", "centiseconds"),
    [(0.977625, 98), (11.561375, 1156), (0.125, 13), (0, 0)],
)
def test_centiseconds_are_rounded_half_up(seconds, centiseconds):
    assert utterance_id("a", seconds, 0) == f"a_{centiseconds:06d}-000000"


def test_dev_takes_whole_conversations(swb1):
    for segments_wanted in (1, 3):
        train, dev = split_dev(read_swb1(swb1), segments_wanted)
        assert {u.recording for u in dev.utterances} == {"sw02001"}
        assert {u.recording for u in train.utterances} == {"sw02005"}
        assert len(dev.utterances) == 3
    assert {u.recording for u in split_dev(read_swb1(swb1))[1].utterances} == {
        "sw02001"
    }
    for impossible in (0, 4, 4000):
        with pytest.raises(InputError, match="change --dev_segments"):
            split_dev(read_swb1(swb1), impossible)


def call(recording, *sides):
    """Utterances of a second: `call("sw02001", "A", "B", "A")`."""
    return [
        Utterance(
            utterance_id(f"{recording}-{side}", n, n + 1),
            recording,
            side,
            n,
            n + 1,
            "x",
        )
        for n, side in sorted(enumerate(sides), key=lambda each: each[1])
    ]


def corpus_of(*calls):
    return SpeechSet("swb1", {}, tuple(u for call in calls for u in call))


def test_speakers_of_dev_are_not_in_train():
    corpus = corpus_of(
        call("sw02001", "A", "B"),
        call("sw02005", "A", "B", "B"),
        call("sw02006", "A", "B"),
    )
    speakers = {"sw02001-A": "1", "sw02001-B": "2", "sw02005-A": "3", "sw02005-B": "2"}
    lines = []
    train, dev = split_dev(corpus, 1, speakers, True, lines.append)
    assert [u.side for u in dev.utterances] == ["sw02001-A", "sw02001-B"]
    assert [u.side for u in train.utterances] == ["sw02005-A", "sw02006-A", "sw02006-B"]
    assert lines == [
        "warning: 1 conversations, such as sw02006, are not in conv.tab: each of their "
        "sides counts as a speaker of its own",
        "train_dev has 2 speakers; their other 1 conversation sides, 0.00 of 0.00 h, "
        "are left out of training, which has 0.00 h",
    ]


def test_speakers_of_dev_stay_in_train_by_default():
    corpus = corpus_of(call("sw02001", "A"), call("sw02005", "A", "B"))
    speakers = {"sw02001-A": "1", "sw02005-A": "1", "sw02005-B": "2"}
    lines = []
    train, _ = split_dev(corpus, 1, speakers, log=lines.append)
    assert [u.side for u in train.utterances] == ["sw02005-A", "sw02005-B"]
    [line] = lines
    assert "are in training, too (--dev_speakers exclude leaves them out)" in line


def test_nobody_is_left_for_training():
    corpus = corpus_of(call("sw02001", "A"), call("sw02005", "A"))
    with pytest.raises(InputError, match="all speakers of the training set"):
        split_dev(corpus, 1, {"sw02001-A": "1", "sw02005-A": "1"}, exclude=True)


@given(
    calls=st.lists(st.lists(st.sampled_from("AB"), min_size=1, max_size=4), min_size=2),
    pins=st.lists(st.integers(0, 9), min_size=1),
    wanted=st.integers(1, 20),
    known=st.booleans(),
)
def test_split_loses_only_the_sides_of_dev_speakers(calls, pins, wanted, known):
    corpus = corpus_of(*(call(f"sw{n:05d}", *sides) for n, sides in enumerate(calls)))
    sides = sorted({u.side for u in corpus.utterances})
    # Sides beyond the PINs have none.
    speakers = {s: str(pin) for s, pin in zip(sides, pins, strict=False)}

    def speaker(utterance):
        return speakers.get(utterance.side, utterance.side)

    taken = next(
        (n for n in range(len(calls)) if sum(map(len, calls[:n])) >= wanted), 0
    )
    front = sum(map(len, calls[:taken]))
    dev_part, rest = corpus.utterances[:front], corpus.utterances[front:]
    heard = {speaker(u) for u in dev_part} if known else set()
    kept = [u for u in rest if speaker(u) not in heard]
    pins_known = speakers if known else None
    split = partial(split_dev, corpus, wanted, pins_known, exclude=known, log=str)
    if not dev_part or not kept:
        with pytest.raises(InputError):
            split()
    else:
        train, dev = split()
        assert dev.utterances == dev_part
        assert list(train.utterances) == kept
        assert {speaker(u) for u in train.utterances}.isdisjoint(heard)


def test_duplicates_are_capped_by_text(swb1):
    corpus = read_swb1(swb1)
    texts = [u.text for u in cap_duplicates(corpus, 3).utterances]
    assert texts.count("yeah") == 3
    assert texts.count("hi um th- story") == 2
    assert cap_duplicates(corpus, 300).utterances == corpus.utterances


def test_two_utterances_of_one_name_are_refused(swb1):
    corpus = read_swb1(swb1)
    twice = replace(corpus, utterances=corpus.utterances[:1] * 2)
    with pytest.raises(InputError, match="two utterances are called sw02001-A_000100"):
        to_data_dir(twice)


def test_summary_counts(swb1):
    train, dev = split_dev(read_swb1(swb1))
    rows = [line.split() for line in summarize([train, dev]).splitlines()]
    assert rows[2] == ["train_dev", "1", "3", "6", "0.003", "5", "0.00"]


SIDE_A = f"{TRANSCRIPTS}/20/2001/sw2001A-ms98-a-trans.text"
DICTIONARY = f"{TRANSCRIPTS}/sw-ms98-dict.text"
HI = "sw2001A-ms98-a-0001 0 1 hi\n"


def remove(pattern):
    return lambda root: [path.unlink() for path in find_files(root, pattern)]


def rewrite(name, content):
    return lambda root: (root / name).write_bytes(content.encode("latin-1"))


def copy_of_a_call(root):
    write_call(root / "again" / "sw02001.sph")


def copy_of_a_transcript(root):
    write_transcript(root / "again", "2001", "A", segments("hi"))


def copy_of_the_dictionary(root):
    write_dictionary(root / "again", [Entry("hi", ("hh", "ay"))])


def only_silence(root):
    for path in find_files(root, r".*-trans\.text"):
        path.write_text(f"{path.name[:7]}-ms98-a-0001 0 10 [silence]\n")


def mono_call(root):
    write_call(root / "swb1_d1" / "data" / "sw02001.sph", channels=1)


DAMAGES = {
    "no recordings": (remove(r".*\.sph"), r"no recordings \(sw0NNNN.sph\)"),
    "no transcripts": (remove(r".*-trans\.text"), "no transcripts"),
    "no dictionary": (remove("sw-ms98-dict.text"), "no dictionary of the MS98"),
    "one side missing": (
        remove("sw2001B.*"),
        r"sw2001A-ms98-a-trans\.text: its other side, sw2001B-ms98-a-trans\.text",
    ),
    "no common conversation": (
        lambda root: (
            [path.unlink() for path in find_files(root, r"sw0.*\.sph")],
            write_call(root / "sw02999.sph"),
        ),
        "no words of any of the recordings",
    ),
    "only silence": (only_silence, "no words of any of the recordings"),
    "recording twice": (copy_of_a_call, "a copy of it is at"),
    "transcript twice": (copy_of_a_transcript, "a copy of it is at"),
    "dictionary twice": (copy_of_the_dictionary, "two files are the dictionary"),
    "mono": (mono_call, r"sw02001\.sph: .*2 channels"),
    "empty recording": (rewrite("swb1_d1/data/sw02001.sph", ""), r"sw02001\.sph: "),
    "no line of MS98": (rewrite(SIDE_A, "hello"), r"trans\.text:1: expected 'sw2001A"),
    "segment twice": (rewrite(SIDE_A, HI * 2), r"trans\.text:2: a second utterance"),
    "past the end": (
        rewrite(SIDE_A, f"{HI}\nsw2001A-ms98-a-0002 1 11 hi\n"),
        r"trans\.text:3: ends at 11.0 s, but sw02001 has only 10.00 s",
    ),
    "dictionary without phones": (
        rewrite(DICTIONARY, "# words\nIBM\nhi hh ay\n"),
        r"sw-ms98-dict\.text:2: expected a word and its phones",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_discs(swb1, kind):
    damage, message = DAMAGES[kind]
    damage(swb1)
    with pytest.raises(InputError, match=message) as raised:
        read_swb1(swb1)
    assert str(raised.value).startswith(str(swb1))
    assert "\n" not in str(raised.value)


LEFT_OUT = {
    "one side missing": 5,
    "recording twice": 6,
    "transcript twice": 5,
    "mono": 3,
    "empty recording": 3,
    "no line of MS98": 4,
    "segment twice": 5,
    "past the end": 5,
    "dictionary without phones": 6,
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_is_damaged_is_left_out_and_counted(swb1, kind):
    DAMAGES[kind][0](swb1)
    lines = []
    corpus = read_swb1(swb1, log=lines.append, max_lost=60)
    assert len(corpus.utterances) == LEFT_OUT[kind]
    [line] = [each for each in lines if each.startswith("left out: 1 of ")] or [
        each for each in lines if each.startswith("left out: 2 of ")
    ]
    assert str(swb1) in line


def test_one_bad_segment_of_many_does_not_stop(swb1):
    said = [Ms98Segment(n / 20, n / 20 + 0.1, "yeah") for n in range(190)]
    said.append(Ms98Segment(9.9, 12.0, "bye"))
    write_transcript(swb1 / TRANSCRIPTS, "2001", "B", said)
    lines = []
    assert len(read_swb1(swb1, log=lines.append).utterances) == 195
    [line] = [each for each in lines if each.startswith("left out: 1 of 196 segments")]
    assert line.endswith(":191: ends at 12.0 s, but sw02001 has only 10.00 s")


def test_sides_may_be_in_small_letters(swb1):
    expected = read_swb1(swb1).utterances
    for path in find_files(swb1, r".*-trans\.text"):
        path.write_text(
            re.sub("(?m)^(sw....)([AB])", r"\1_\2", path.read_text())
            .replace("_A", "a")
            .replace("_B", "b")
        )
        path.rename(path.with_name(path.name.replace("A-", "a-").replace("B-", "b-")))
    assert read_swb1(swb1).utterances == expected


def test_missing_halves_are_left_out_and_counted(swb1):
    write_call(swb1 / "sw02999.sph")
    (swb1 / "swb1_d2" / "data" / "sw02005.sph").unlink()
    lines = []
    assert len(read_swb1(swb1, log=lines.append).utterances) == 3
    assert lines == [
        "2 recordings (the whole corpus has 2435 or 2438)",
        "warning: 1 recordings without transcripts, such as sw02999: left out",
        "warning: 1 transcribed conversations without recording, such as sw02005: "
        "left out",
        "3 utterances with words",
    ]


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
    "no PIN": (b"2001,Y,1020,\n", "tab:1: expected 'conversation"),
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
