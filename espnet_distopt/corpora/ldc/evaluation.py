"""A set of speech for testing, with the files that hub5 scoring needs."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from espnet_distopt.corpora.hub5.marks import reference_words
from espnet_distopt.corpora.hub5.pem import Span
from espnet_distopt.corpora.hub5.stm import Reference
from espnet_distopt.corpora.kaldi.directory import CHANNELS
from espnet_distopt.corpora.kaldi.speech_set import SpeechSet, Utterance
from espnet_distopt.corpora.ldc.discs import OVERSHOOT, call_seconds
from espnet_distopt.errors import InputError

_PADDING = 0.1
"""Seconds added on each side of an utterance where no other one is near."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation set.

    Attributes:
        speech: The utterances to recognise, which are the segments that are scored; the
            text of one whose reference has only hesitations or noise is empty.
        stm: The text of the reference, mended and joined. It keeps all utterances and
            all marks.
        glm: The file of mapping rules, which has been checked.
    """

    speech: SpeechSet
    stm: str
    glm: Path


def evaluation_set(
    name: str,
    audio: dict[str, Path],
    references: Sequence[Reference],
    log: Callable[[str], None],
) -> SpeechSet:
    """Make the utterances to recognise from a reference.

    Every segment that is scored is one: where the reference has no words, those that
    are recognised are insertions. The ids have the times of the reference. The audio
    has up to 0.1 s more on each side, but at most half of the gap to the next
    utterance. An utterance that reaches past the end of its recording is cut there; one
    that starts past it is left out. The reference keeps both, so a scorer counts the
    missing words as deletions.

    Args:
        name: The name of the set.
        audio: The path of each recording.
        references: The lines of the reference, in any order.
        log: Called with lines that count what is cut or left out.

    Raises:
        InputError: The recording of a line is missing or bad, or its channel is neither
            A nor B; the message names file and line.
    """
    seconds = _lengths(audio, (reference.span for reference in references))
    of_span = {reference.span: reference for reference in references}
    _tell_outside(name, of_span, seconds, log)
    utterances = [
        _utterance(of_span[span], start, end)
        for span, start, end in _padded(of_span, seconds)
        if end > start and of_span[span].judged
    ]
    if not utterances:
        raise InputError(f"{name}: no utterance lies within its recording")
    utterances.sort(key=attrgetter("id"))
    return SpeechSet(name, audio, tuple(utterances))


def _utterance(reference: Reference, start: float, end: float) -> Utterance:
    span, text = reference.span, " ".join(reference_words(reference.text))
    return Utterance(span.utterance, span.file, span.channel, start, end, text)


def _lengths(audio: dict[str, Path], spans: Iterable[Span]) -> dict[str, float]:
    """Return the length in seconds of each recording that has a span."""
    seconds: dict[str, float] = {}
    for span in spans:
        if span.channel not in CHANNELS:
            raise InputError(
                f"{span.where}: expected channel A or B, got {span.channel}"
            )
        if span.file not in audio:
            raise InputError(f"{span.where}: no recording {span.file}.sph")
        if span.file not in seconds:
            seconds[span.file] = call_seconds(audio[span.file])
    return seconds


def _tell_outside(
    name: str,
    spans: Collection[Span],
    seconds: dict[str, float],
    log: Callable[[str], None],
) -> None:
    """Tell how many spans reach past the end of their recording by more than a bit."""
    past = [span for span in spans if span.end > seconds[span.file] + OVERSHOOT]
    if not past:
        return
    out = sum(span.start >= seconds[span.file] for span in past)
    first = past[0]
    log(
        f"warning: {name}: {len(past)} of {len(spans)} segments reach past the end of "
        f"their recording; {len(past) - out} are cut, and {out} are left out, whose "
        f"words count as deletions; the first: {first.where}: ends at {first.end} s, "
        f"but {first.file} has only {seconds[first.file]:.2f} s"
    )


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
