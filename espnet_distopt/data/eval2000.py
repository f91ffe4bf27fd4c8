"""The Hub5 2000 evaluation: LDC2002S09 (speech) and LDC2002T43 (transcripts)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from espnet_distopt.data.discs import (
    call_seconds,
    find_file,
    find_files,
    name_recordings,
)
from espnet_distopt.data.hub5 import Span, read_pem, read_stm, reference_words
from espnet_distopt.data.speech_set import SpeechSet, Utterance
from espnet_distopt.errors import InputError

_PADDING = 0.1
"""Seconds added on each side of an utterance, where no neighbour is in the way."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation set, and the files by which hub5 scoring judges it."""

    speech: SpeechSet
    stm: Path
    glm: Path


def read_eval2000(speech: Path, text: Path) -> Evaluation:
    """Read the evaluation set.

    Args:
        speech: has `*.sph` and `hub5e_00.pem` below it.
        text: has `hub5e00*.stm` and `en20000405_hub5.glm` below it.

    Returns:
        The utterances whose reference has words, sorted by id. Ids come from the
        PEM's times, audio is padded by up to 0.1 s. The STM keeps all of them.

    Raises:
        InputError: a file is missing or a line is bad, the lists of utterances in PEM
            and STM differ, or one lies outside its recording.
    """
    pem = find_file(speech, r"hub5e_00\.pem", "segmentation")
    stm = find_file(text, r"hub5e00.*\.stm", "reference")
    glm = find_file(text, r".*hub5\.glm", "mapping rules")
    audio = name_recordings(find_files(speech, r"(sw|en)_\d{4}\.sph"))
    spans = read_pem(pem)
    references = {r.span.utterance: r.text for r in read_stm(stm)}
    _check_same(pem, {span.utterance for span in spans}, stm, set(references))
    seconds = _lengths(pem, spans, audio)
    utterances = [
        Utterance(span.utterance, span.file, span.channel, start, end, " ".join(words))
        for span, start, end in _padded(spans, seconds)
        if (words := reference_words(references[span.utterance]))
    ]
    utterances.sort(key=attrgetter("id"))
    return Evaluation(SpeechSet("eval2000", audio, tuple(utterances)), stm, glm)


def _check_same(pem: Path, segmented: set[str], stm: Path, referred: set[str]) -> None:
    for lacking, having, names in (
        (stm, pem, segmented - referred),
        (pem, stm, referred - segmented),
    ):
        if names:
            raise InputError(
                f"{lacking}: lacks {len(names)} of the utterances of {having}, the "
                f"first is {min(names)}"
            )


def _lengths(
    pem: Path, spans: Iterable[Span], audio: dict[str, Path]
) -> dict[str, float]:
    """Seconds of each recording that the PEM names."""
    seconds: dict[str, float] = {}
    for span in spans:
        if span.file not in audio:
            raise InputError(f"{pem}: no recording {span.file}.sph")
        if span.file not in seconds:
            seconds[span.file] = call_seconds(audio[span.file])
        if span.end > seconds[span.file]:
            raise InputError(
                f"{pem}: {span.utterance} ends at {span.end} s, but {span.file} has "
                f"only {seconds[span.file]:.2f} s"
            )
    return seconds


def _padded(
    spans: Iterable[Span], seconds: dict[str, float]
) -> Iterator[tuple[Span, float, float]]:
    """Each span with its padded start and end; between neighbours half the gap."""
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
