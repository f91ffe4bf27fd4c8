from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.kaldi.directory import SpeechSet, to_data_dir
from espnet_distopt.recipes.corpora.ldc.fisher import (
    plain_words,
    read_fisher,
    read_transcript,
)

TEXT = """\
# fe_03_00004.sph
# Transcribed at the LDC

7.38 8.78 A: an- so the topic is
8.00 8.50 B: [laughter] Mhm [noise]
8.90 9.40 B: ((maybe)) this
9.10 9.50 A: [mn]
9.60 10.30 A: the U._S. I._B._M.'s
"""


@pytest.fixture
def discs(tmp_path: Path) -> Path:
    speech = tmp_path / "LDC2004S13" / "fe_03_p1_sph1" / "audio" / "000"
    text = tmp_path / "LDC2004T19" / "fe_03_p1_tran" / "data" / "trans" / "000"
    speech.mkdir(parents=True)
    text.mkdir(parents=True)
    silence = np.zeros((80000, 2), dtype=np.int16)
    write_sphere(speech / "fe_03_00004.sph", silence, 8000)
    (text / "fe_03_00004.txt").write_text(TEXT)
    return tmp_path


def read(discs: Path, log: list[str] | None = None, max_lost: float = 1.0) -> SpeechSet:
    lines: list[str] = [] if log is None else log
    places = [discs / "LDC2004S13"], [discs / "LDC2004T19"]
    return read_fisher(*places, lines.append, max_lost)


def transcript(discs: Path) -> Path:
    return next(discs.rglob("*.txt"))


def test_utterances_with_words_are_read(discs):
    fisher = read(discs)
    assert fisher.name == "fisher"
    assert [(u.id, u.start, u.end, u.text) for u in fisher.utterances] == [
        ("fe_03_00004-A-000738-000877", 7.38, 8.78, "an- so the topic is"),
        ("fe_03_00004-A-000960-001030", 9.6, 10.0, "the u s i b m's"),
        ("fe_03_00004-B-000800-000850", 8.0, 8.5, "mhm"),
    ]
    data = to_data_dir(fisher)
    assert data.utt2spk["fe_03_00004-B-000800-000850"] == "fe_03_00004-B"
    assert str(data.channels["fe_03_00004-B"]) == "fe_03_00004 B"


def test_speech_and_text_may_lie_together_and_overlap(discs):
    fisher = read_fisher([discs, discs / "LDC2004S13"], [discs], lambda line: None)
    assert len(fisher.utterances) == 3


def test_counts_are_told(discs):
    lonely = discs / "LDC2004T19" / "fe_03_00005.txt"
    lonely.write_text("# fe_03_00005.sph\n1.0 2.0 A: oh\n")
    lines: list[str] = []
    read(discs, lines)
    assert lines == [
        "warning: 1 recordings of Fisher, all parts have 11699",
        "warning: 2 transcripts of Fisher, all parts have 11699",
        "Fisher: 1 conversations; recordings without transcript: 0, transcripts "
        "without recording: 1",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Mhm", "mhm"),
        ("((something)) else", ""),
        ("[laughter] yeah [breath]", "yeah"),
        ("[laugh][sigh]", ""),
        ("well -- um", "well um"),
        ("T._V. <foreign> si", "t v si"),
        ("e. t. c.", "e t c"),
        ("", ""),
    ],
)
def test_plain_words(text, words):
    assert plain_words(text) == words.split()


def test_few_segments_outside_are_dropped_and_counted(discs):
    turns = [f"{n / 100:.2f} {n / 100 + 1:.2f} A: oh\n" for n in range(300)]
    odd = ["5.00 5.00 B: no length\n", "9.00 99.00 B: past the end\n"]
    transcript(discs).write_text("".join(["# fe_03_00004.sph\n", *odd, *turns]))
    lines: list[str] = []
    assert len(read(discs, lines).utterances) == 300
    assert lines[-1].startswith("left out: 2 of 302 segments, the first: ")
    assert "fe_03_00004.txt:2: no length, or outside" in lines[-1]


BAD_LINES = {
    "no_end": ("7.38 A: oh", "expected 'start end A: words'"),
    "channel": ("7.38 8.78 C: oh", "expected 'start end A: words'"),
    "time": ("7,38 8.78 A: oh", "expected 'start end A: words'"),
    "backwards": ("8.78 7.38 A: oh", "expected start <= end, got 8.78 and 7.38"),
    "twice": ("7.38 8.78 A: oh", "fe_03_00004-A-000738-000877 is at .*txt:4 too"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_lines(discs, kind):
    line, message = BAD_LINES[kind]
    transcript(discs).write_text(f"{TEXT}{line}\n")
    with pytest.raises(InputError, match=f"fe_03_00004.txt:9: {message}"):
        read(discs)
    assert len(read(discs, max_lost=30).utterances) == 3


def test_bad_conversations_are_left_out_and_counted(discs):
    speech, text = next(discs.rglob("*.sph")), transcript(discs)
    for number in range(5, 8):
        name = f"fe_03_{number:05d}"
        speech.with_name(f"{name}.sph").write_bytes(speech.read_bytes())
        said = TEXT.replace("fe_03_00004", name)
        text.with_name(f"{name}.txt").write_text(said)
    speech.with_name("fe_03_00005.sph").write_bytes(b"NIST_1A\n")
    text.with_name("fe_03_00006.txt").write_text("nothing\n")
    with pytest.raises(
        InputError, match=r"fe_03_00005.sph.* \(2 of 4 conversations are"
    ):
        read(discs)
    lines: list[str] = []
    fisher = read(discs, lines, max_lost=50)
    assert {u.recording for u in fisher.utterances} == {"fe_03_00004", "fe_03_00007"}
    assert "left out: 2 of 4 conversations, the first: " in lines[-1]


BAD_FILES = {
    "empty": (b"", "fe_03_00004.txt: empty"),
    "comments": (b"# fe_03_00004.sph\n", "fe_03_00004.txt: empty transcript"),
    "header": (b"7.38 8.78 A: oh\n", ":1: expected '# fe_03_00004.sph', got '7.38"),
    "name": (b"# fe_03_00005.sph\n1 2 A: oh\n", ":1: expected '# fe_03_00004.sph'"),
    "outside": (
        b"# fe_03_00004.sph\n1 2 A: oh\n50 51 A: oh\n",
        r"txt:3: no length, .* \(1 of 2 segments are bad, more than 1 %: check the",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(discs, kind):
    content, message = BAD_FILES[kind]
    transcript(discs).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(discs)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("*.sph", r"LDC2004S13: no recordings \(fe_03_NNNNN.sph\)"),
        ("*.txt", r"LDC2004T19: no transcripts \(fe_03_NNNNN.txt\)"),
    ],
)
def test_missing_files(discs, pattern, message):
    next(discs.rglob(pattern)).unlink()
    with pytest.raises(InputError, match=message):
        read(discs)


def test_other_ways_to_miss_files(discs):
    with pytest.raises(InputError, match="nowhere: no such directory"):
        read_fisher([discs / "nowhere"], [discs], lambda line: None)
    path = transcript(discs)
    path.rename(path.with_name("fe_03_00005.txt"))
    with pytest.raises(InputError, match="no transcript is of a recording of"):
        read(discs)
    with pytest.raises(InputError, match="no such file"):
        read_transcript(path)
