"""A set of speech for testing, with the files by which hub5 scoring judges it."""

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
"""Seconds added on each side of an utterance, where no neighbour is in the way."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation set.

    Attributes:
        speech: the utterances to recognise: those whose reference has words.
        stm: text of the reference, mended and joined, ready to be written to `stm`; it
            keeps all utterances and all marks.
        glm: the mapping rules, checked; to be copied to `glm` byte by byte.
    """

    speech: SpeechSet
    stm: str
    glm: Path


def evaluation_set(
    name: str, audio: dict[str, Path], references: Sequence[Reference]
) -> SpeechSet:
    """Make the utterances to recognise from a reference.

    Ids come from the reference's times; audio is padded by up to 0.1 s each side,
    between neighbours by up to half the gap.

    Args:
        name: of the set.
        audio: path of each recording.
        references: in any order.

    Raises:
        InputError: no recording for a reference, or it lies outside of it; file and
            line are named.
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
    """Seconds of each recording that is referred to."""
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
    """Each span with its padded start and end."""
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
    """Padding next to a gap of so many seconds; negative if neighbours overlap."""
    return max(0.0, min(_PADDING, gap / 2))
