"""Words lie where a scorer looks for them, as sclite divides them among segments."""

from pathlib import Path

import pytest

from espnet_distopt.corpora.hub5.ctm import Word, read_ctm, write_ctm
from espnet_distopt.corpora.hub5.placing import Span, placed, reference_spans
from espnet_distopt.corpora.kaldi.places import ArkPlace
from espnet_distopt.corpora.word_times import TimedWord
from espnet_distopt.scoring.sides import add_words, read_sides

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
