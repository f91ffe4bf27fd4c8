"""Switchboard in miniature: real file names and formats, silent recordings."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile

from espnet_distopt.bin import prepare_swbd
from espnet_distopt.data.discs import call_seconds, find_file, find_files
from espnet_distopt.data.ms98 import Segment, write_transcript
from espnet_distopt.data.speech_set import summarize, to_data_dir, utterance_id
from espnet_distopt.data.swbd import cap_duplicates, read_swb1, split_dev
from espnet_distopt.errors import InputError


def write_call(path, seconds=10.0, channels=2, rate=8000):
    path.parent.mkdir(parents=True, exist_ok=True)
    silence = np.zeros((round(seconds * rate), channels))
    soundfile.write(path, silence, rate, format="NIST", subtype="ULAW")


def segments(*texts):
    return [Segment(float(n), n + 1.0, text) for n, text in enumerate(texts)]


@pytest.fixture
def swb1(tmp_path):
    """Two calls on two discs; side A of each says yeah twice."""
    root = tmp_path / "swb1"
    for disc, number in (("swb1_d1", "2001"), ("swb1_d2", "2005")):
        write_call(root / disc / "data" / f"sw0{number}.sph")
        transcripts = root / "transcriptions" / "swb_ms98_transcriptions"
        said = segments("[silence]", "yeah", "[noise] yeah")
        write_transcript(transcripts, number, "A", said)
        said = [Segment(0.977625, 11.561375 - 2, "hi um th[is]- [laughter-story]")]
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
    transcripts = swb1 / "transcriptions" / "swb_ms98_transcriptions"
    write_transcript(transcripts, "2001", "B", [Segment(9.0, 10.3, "bye")])
    bye = read_swb1(swb1).utterances[2]
    assert (bye.id, bye.end) == ("sw02001-B_000900-001030", 10.0)


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


def test_duplicates_are_capped_by_text(swb1):
    corpus = read_swb1(swb1)
    texts = [u.text for u in cap_duplicates(corpus, 3).utterances]
    assert texts.count("yeah") == 3
    assert texts.count("hi um th- story") == 2
    assert cap_duplicates(corpus, 300).utterances == corpus.utterances


def test_files_of_the_data_directory(swb1, tmp_path):
    to_data_dir(split_dev(read_swb1(swb1))[1]).write(tmp_path / "dev")
    path = swb1 / "swb1_d1" / "data" / "sw02001.sph"
    expected = {
        "wav.scp": f"sw02001-A {path}\nsw02001-B {path}\n",
        "reco2file_and_channel": "sw02001-A sw02001 A\nsw02001-B sw02001 B\n",
        "segments": "sw02001-A_000100-000200 sw02001-A 1.000000 2.000000\n"
        "sw02001-A_000200-000300 sw02001-A 2.000000 3.000000\n"
        "sw02001-B_000098-000956 sw02001-B 0.980000 9.560000\n",
        "text": "sw02001-A_000100-000200 yeah\nsw02001-A_000200-000300 yeah\n"
        "sw02001-B_000098-000956 hi um th- story\n",
        "utt2spk": "sw02001-A_000100-000200 sw02001-A\n"
        "sw02001-A_000200-000300 sw02001-A\nsw02001-B_000098-000956 sw02001-B\n",
        "spk2utt": "sw02001-A sw02001-A_000100-000200 sw02001-A_000200-000300\n"
        "sw02001-B sw02001-B_000098-000956\n",
    }
    for name, content in expected.items():
        assert (tmp_path / "dev" / name).read_text() == content


def test_two_utterances_of_one_name_are_refused(swb1):
    corpus = read_swb1(swb1)
    twice = replace(corpus, utterances=corpus.utterances[:1] * 2)
    with pytest.raises(InputError, match="two utterances are called sw02001-A_000100"):
        to_data_dir(twice)


def test_summary_counts(swb1):
    train, dev = split_dev(read_swb1(swb1))
    rows = [line.split() for line in summarize([train, dev]).splitlines()]
    assert rows[2] == ["train_dev", "1", "3", "6", "0.003", "5", "0.00"]


SIDE_A = "transcriptions/swb_ms98_transcriptions/20/2001/sw2001A-ms98-a-trans.text"


def remove(pattern):
    return lambda root: [path.unlink() for path in find_files(root, pattern)]


def rewrite(name, content):
    return lambda root: (root / name).write_text(content)


def copy_of_a_call(root):
    write_call(root / "again" / "sw02001.sph")


def mono_call(root):
    write_call(root / "swb1_d1" / "data" / "sw02001.sph", channels=1)


def wideband_call(root):
    write_call(root / "swb1_d1" / "data" / "sw02001.sph", rate=16000)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove(r".*\.sph"), r"no recordings \(sw0NNNN.sph\)"),
        (remove(r".*-trans\.text"), "no transcripts"),
        (remove("sw2001B.*"), r"sw02001\.sph: no transcript of its side B"),
        (copy_of_a_call, "a copy of it is at"),
        (mono_call, "expected 2 channels of 8000 Hz, got 1 of 8000"),
        (wideband_call, "expected 2 channels of 8000 Hz, got 2 of 16000"),
        (rewrite("swb1_d1/data/sw02001.sph", "junk"), r"sw02001\.sph: not a SPHERE"),
        (rewrite(SIDE_A, "hello"), r"trans\.text:1: expected 'sw2001A"),
        (
            rewrite(
                SIDE_A, "sw2001A-ms98-a-0001 0 1 hi\nsw2001A-ms98-a-0002 1 11 hi\n"
            ),
            r"trans\.text:2: ends at 11.0 s, but sw02001 has only 10.00 s",
        ),
    ],
)
def test_damaged_discs(swb1, damage, message):
    damage(swb1)
    with pytest.raises(InputError, match=message):
        read_swb1(swb1)


def test_transcripts_without_recording_are_counted(swb1):
    (swb1 / "swb1_d2" / "data" / "sw02005.sph").unlink()
    lines = []
    assert len(read_swb1(swb1, log=lines.append).utterances) == 3
    assert lines == ["1 recordings; transcripts without recording: 1"]


def test_missing_directory_and_ambiguous_file(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        find_files(tmp_path / "nowhere", ".*")
    with pytest.raises(InputError, match="no reference"):
        find_file(tmp_path, r".*\.stm", "reference")
    for name in ("a.stm", "B.STM"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="two files are the reference"):
        find_file(tmp_path, r".*\.stm", "reference")


def test_length_of_a_call(tmp_path):
    write_call(tmp_path / "call.sph", seconds=1.5)
    assert call_seconds(tmp_path / "call.sph") == 1.5


def test_command_fails_in_one_line_and_leaves_nothing(swb1, tmp_path, capsys):
    missing = str(tmp_path / "missing")
    with pytest.raises(SystemExit) as stopped:
        prepare_swbd.main(
            f"--swb1 {swb1} --eval2000_speech {missing} --eval2000_text {missing} "
            f"--out {tmp_path / 'data'}".split()
        )
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {missing}: no such directory\n"
    assert not (tmp_path / "data").exists()
