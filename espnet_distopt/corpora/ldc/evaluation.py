"""A set of speech for testing, with the files that hub5 scoring needs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from espnet_distopt.corpora.hub5.marks import reference_words
from espnet_distopt.corpora.hub5.pem import Span
from espnet_distopt.corpora.hub5.stm import Reference
from espnet_distopt.corpora.kaldi.speech_set import SpeechSet, Utterance
from espnet_distopt.corpora.ldc.discs import OVERSHOOT, call_seconds
from espnet_distopt.errors import InputError

_PADDING = 0.1
"""Seconds added on each side of an utterance where no other one is near."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation set.

    Attributes:
        speech: The utterances to recognise, which are those whose reference has words.
        stm: The text of the reference, mended and joined. It keeps all utterances and
            all marks.
        glm: The file of mapping rules, which has been checked.
    """

    speech: SpeechSet
    stm: str
    glm: Path


def evaluation_set(
    name: str, audio: dict[str, Path], references: Sequence[Reference]
) -> SpeechSet:
    """Make the utterances to recognise from a reference.

    The ids have the times of the reference. The audio has up to 0.1 s more on each
    side, but at most half of the gap to the next utterance.

    Args:
        name: The name of the set.
        audio: The path of each recording.
        references: The lines of the reference, in any order.

    Raises:
        InputError: The recording of a line is missing, or the line lies outside of it;
            the message names file and line.
    """
    seconds = _lengths(audio, (reference.span for reference in references))
    texts = {reference.span: reference.text for reference in references}
    utterances = [
        Utterance(span.utterance, span.file, span.channel, start, end, " ".join(words))
        for span, start, end in _padded(texts, seconds)
        if (words := reference_words(texts[span]))
    ]
    utterances.sort(key=attrgetter("id"))
    return SpeechSet(name, audio, tuple(utterances))


def _lengths(audio: dict[str, Path], spans: Iterable[Span]) -> dict[str, float]:
    """Return the length in seconds of each recording that has a span."""
    seconds: dict[str, float] = {}
    for span in spans:
        if span.file not in audio:
            raise InputError(f"{span.where}: no recording {span.file}.sph")
        if span.file not in seconds:
            seconds[span.file] = call_seconds(audio[span.file])
        if span.end > seconds[span.file] + OVERSHOOT:
            raise InputError(
                f"{span.where}: ends at {span.end} s, but {span.file} has only "
                f"{seconds[span.file]:.2f} s"
            )
    return seconds


def _padded(
    spans: Iterable[Span], seconds: dict[str, float]
) -> Iterator[tuple[Span, float, float]]:
    """Yield each span with its padded start and end, in seconds."""
    ordered = sorted(spans, key=attrgetter("side", "start"))
    for _, group in groupby(ordered, key=attrgetter("side")):
        side = list(group)
        ends = [-math.inf, *(span.end for span in side)]
        starts = [*(span.start for span in side[1:]), math.inf]
        for span, before, after in zip(side, ends, starts, strict=False):
            last = int(seconds[span.file] * 100) / 100
            start = max(0.0, span.start - _margin(span.start - before))
            end = min(last, span.end + _margin(after - span.end))
            yield span, round(start, 3), round(end, 3)


def _margin(gap: float) -> float:
    """Return the padding beside a gap (seconds), which is negative if spans overlap."""
    return max(0.0, min(_PADDING, gap / 2))
