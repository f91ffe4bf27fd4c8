"""Puts recognized words where a scorer looks for them: into their segment."""

from collections.abc import Mapping
from pathlib import Path

from espnet_distopt.corpora.hub5.ctm import Word
from espnet_distopt.corpora.hub5.stm import read_stm
from espnet_distopt.corpora.kaldi.places import ArkPlace
from espnet_distopt.corpora.word_times import TimedWord

Span = tuple[float, float]
"""The start and the end of a segment, in seconds of its recording."""


def reference_spans(data: Path) -> Mapping[str, Span]:
    """Return utterance -> the segment that the reference calls by this name.

    Args:
        data: a data directory; without an `stm` it has no segments of a reference.

    Raises:
        InputError: the `stm` is malformed.
    """
    stm = data / "stm"
    references = read_stm(stm) if stm.is_file() else []
    return {r.span.utterance: (r.span.start, r.span.end) for r in references}


def placed(timed: TimedWord, place: ArkPlace, seconds: float, span: Span) -> Word:
    """Return a word with its times in the recording, cut at the ends of its segment.

    sclite gives a word to the first segment that ends after the word's middle. So a
    word in the last frame, which may begin where the segment ends, would be missing in
    its own segment and be an insertion in the next one. Here a word takes up at least
    one frame of its segment, whose end is then behind its middle. Words stay in order.

    Args:
        timed: the word with its first frame and the frame behind its last one.
        place: the utterance's place in the recording.
        seconds: the length of a frame, in seconds.
        span: the segment.
    """
    first, last = span
    least = min(seconds, last - first)
    start = min(max(place.start + timed.first * seconds, first), last - least)
    end = min(max(place.start + timed.end * seconds, start + least), last)
    return Word(place.file, place.channel, start, end - start, timed.word)
