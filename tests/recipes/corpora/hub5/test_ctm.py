import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.hub5.ctm import (
    Span,
    TimedWord,
    Word,
    placed,
    read_ctm,
    reference_spans,
    words_by_side,
    write_ctm,
)
from espnet_distopt.recipes.corpora.kaldi.directory import ArkPlace
from espnet_distopt.recipes.scoring.sides import add_words, read_sides
from tests.refusal import refuses

WORDS = [
    Word("en_4156", "A", 9.5, 0.25, "yeah"),
    Word("en_4156", "A", 301.85, 0.3, "oh"),
    Word("en_4156", "B", 2.0, 0.0, "i'm"),
    Word("sw_4390", "A", 0.0, 1.234, "th-"),
]
TEXT = """\
en_4156 A 9.500 0.250 yeah
en_4156 A 301.850 0.300 oh
en_4156 B 2.000 0.000 i'm
sw_4390 A 0.000 1.234 th-
"""


def test_words_are_written_in_order_and_read_back(tmp_path):
    shuffled = random.Random(1).sample(WORDS, len(WORDS))
    write_ctm(tmp_path / "ctm", shuffled)
    assert (tmp_path / "ctm").read_text() == TEXT
    assert read_ctm(tmp_path / "ctm") == WORDS
    assert os.listdir(tmp_path) == ["ctm"]


def test_words_that_start_together_keep_their_order(tmp_path):
    words = [Word("a", "A", 1.0, 0.0, word) for word in ("z", "y", "z")]
    write_ctm(tmp_path / "ctm", words)
    assert read_ctm(tmp_path / "ctm") == words


def test_what_others_write_is_read(tmp_path):
    text = ";; system x\n\nb B 1 .5 Yes 0.9 lex spk\r\na a 3 1 no\na A 2 1 oh 1.0\n"
    (tmp_path / "ctm").write_text(text)
    assert read_ctm(tmp_path / "ctm") == [
        Word("a", "A", 2.0, 1.0, "oh"),
        Word("a", "A", 3.0, 1.0, "no"),
        Word("b", "B", 1.0, 0.5, "Yes"),
    ]


@pytest.mark.parametrize("text", ["", " \n\n", ";; a system\n"])
def test_a_system_that_recognizes_nothing_has_no_words(tmp_path, text):
    (tmp_path / "ctm").write_text(text)
    assert read_ctm(tmp_path / "ctm") == []
    assert not words_by_side(tmp_path / "ctm")


BAD_LINES = {
    "too_few_fields": ("a A 1.0 0.5", "expected 'file channel start duration word'"),
    "too_many_fields": ("a A 1 1 oh 1 lex spk more", "expected 'file channel start"),
    "channel": ("a AB 1.0 0.5 oh", "expected a channel such as A or B, got AB"),
    "start": ("a A one 0.5 oh", "expected numbers for start, duration"),
    "backwards": ("a A 1.0 -0.5 oh", "expected start and duration of at least 0 s"),
    "no_number": ("a A nan 0.5 oh", "expected start and duration of at least 0 s"),
    "confidence_word": ("a A 1.0 0.5 oh my", "expected numbers for start, duration"),
    "confidence": ("a A 1.0 0.5 oh 1.5", "expected a confidence from 0 to 1, got 1.5"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_lines(tmp_path, kind):
    line, message = BAD_LINES[kind]
    text = f";; comment\na A 1.0 0.5 oh\n{line}\n"
    refuses(read_ctm, tmp_path / "ctm", text, f"ctm:3: {message}")


BAD_FILES = {
    "missing": (None, "ctm: no such file"),
    "latin1": (b"a A 1 1 oh\na A 2 1 caf\xe9\n", "ctm:2: expected UTF-8 text"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(tmp_path, kind):
    content, message = BAD_FILES[kind]
    refuses(read_ctm, tmp_path / "ctm", content, message)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_ctm(tmp_path)


@pytest.mark.parametrize(
    "word",
    [
        Word("a b", "A", 1.0, 1.0, "oh"),
        Word("a", "A", 1.0, 1.0, "oh my"),
        Word("a", "A", 1.0, 1.0, ""),
        Word("a", "-1", 1.0, 1.0, "oh"),
        Word("a", "A", float("nan"), 1.0, "oh"),
        Word("a", "A", 1.0, -1.0, "oh"),
    ],
)
def test_bad_words_leave_the_file_as_it_was(tmp_path, word):
    write_ctm(tmp_path / "ctm", WORDS)
    with pytest.raises(InputError, match="CTM: expected"):
        write_ctm(tmp_path / "ctm", [*WORDS, word])
    assert (tmp_path / "ctm").read_text() == TEXT
    assert os.listdir(tmp_path) == ["ctm"]


def test_sclite_takes_the_order(tmp_path):
    """It matches the files side by side, and sorts none of them."""
    if shutil.which("sctk") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("sctk is not installed")
        pytest.skip("sctk is not installed")
    words = [
        Word(f, c, 10.0 * n, 1.0, "oh") for f in "ab" for c in "BA" for n in (2, 0)
    ]
    write_ctm(tmp_path / "ctm", words)
    stm = [
        f"{f} {c} {f}{c} {t} {t + 5} oh\n" for f in "ab" for c in "AB" for t in (0, 20)
    ]
    (tmp_path / "stm").write_text("".join(stm))
    command = ["sctk", "sclite", "-r", "stm", "stm", "-h", "ctm", "ctm", "-o", "rsum"]
    done = subprocess.run(
        [*command, "stdout"], cwd=tmp_path, capture_output=True, text=True
    )
    [total] = [line for line in done.stdout.splitlines() if "Sum" in line]
    assert total.replace("|", " ").split()[1:7] == ["8", "8", "8", "0", "0", "0"]


def test_words_are_counted_by_side_with_alternatives(tmp_path):
    path = tmp_path / "ctm"
    path.write_text(
        "b 1 0 1 so 0.9\na A * * <ALT_BEGIN>\na A 1 1 oh\na a * * <ALT>\n"
        "a A 1 1 no\na A * * <ALT_END>\n"
    )
    assert words_by_side(path) == {"a-A": 2, "b-1": 1}
    refuses(words_by_side, path, "a A * * oh\n", "ctm:1: expected <ALT_BEGIN> or")
    refuses(words_by_side, path, "a A 1 1\n", "ctm:1: expected 'file channel start")


# Words lie where a scorer looks for them, as sclite divides them among segments.

PLACE = ArkPlace("x", "A", 5.0)
FRAME = 0.5


@pytest.mark.parametrize(
    ("frames", "span", "start", "end"),
    [
        ((1, 3), (5.0, 9.0), 5.5, 6.5),
        ((1, 4), (5.0, 6.75), 5.5, 6.75),  # the last frame ends behind the audio
        ((4, 5), (5.0, 7.0), 6.5, 7.0),  # the last frame begins where it ends
        ((6, 8), (5.0, 7.0), 6.5, 7.0),
        ((0, 1), (5.75, 7.0), 5.75, 6.25),  # the audio begins before the segment
        ((0, 9), (5.75, 7.0), 5.75, 7.0),
        ((3, 4), (5.0, 5.25), 5.0, 5.25),  # the segment is shorter than a frame
    ],
)
def test_the_times_of_a_word(
    frames: tuple[int, int], span: Span, start: float, end: float
) -> None:
    word = placed(TimedWord("a", *frames), PLACE, FRAME, span)
    assert word == Word("x", "A", start, end - start, "a")


STM = "x A s 0.00 {cut} a b c\nx A s {cut} 9.00 d\n"


@pytest.mark.parametrize("seconds", [0.01, 0.02, 0.03, 0.06])
@pytest.mark.parametrize("cut", [4.0, 4.02, 4.05, 4.2])
def test_the_last_words_are_scored_in_their_segment(
    seconds: float, cut: float, tmp_path: Path
) -> None:
    """Two segments touch; a BLSTM emits words in the last frames, as a CTC model may.

    With a centred window an utterance of n samples has n // hop + 1 frames.
    """
    frames = int(cut / seconds + 1e-6) + 1
    said = [
        TimedWord("a", frames - 3, frames - 2),
        TimedWord("b", frames - 2, frames - 1),
        TimedWord("c", frames - 1, frames),
    ]
    words = [placed(w, ArkPlace("x", "A", 0.0), seconds, (0.0, cut)) for w in said]
    words += [
        placed(TimedWord("d", 0, 1), ArkPlace("x", "A", cut), seconds, (cut, 9.0))
    ]
    write_ctm(tmp_path / "ctm", words)
    (tmp_path / "stm").write_text(STM.format(cut=f"{cut:.2f}"))
    sides = read_sides(tmp_path / "stm")
    add_words(sides, read_ctm(tmp_path / "ctm"), tmp_path / "stm", tmp_path / "ctm")
    assert sides["x-A"].segments() == [("a b c", ["a", "b", "c"]), ("d", ["d"])]


def test_spans_of_a_reference(tmp_path: Path) -> None:
    assert reference_spans(tmp_path) == {}
    (tmp_path / "stm").write_text("x A x-A 0.50 4.00 <O> a\n")
    (span,) = reference_spans(tmp_path).values()
    assert span == (0.5, 4.0)
