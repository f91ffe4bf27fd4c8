"""PEM files of a NIST Hub5 evaluation: which stretches to recognise.

Each line is `file channel speaker start end`, times in seconds. Lines that start with
`;;` are comments.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from espnet_distopt.corpora.kaldi.directory import CHANNELS
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text

# Rounded ends may run a little into the next segment; the scorer goes by each word's
# midpoint. A larger overlap it does not refuse, but counts wrongly.
_OVERLAP = 0.5


@dataclass(frozen=True)
class Span:
    """A stretch of one channel of a recording.

    Attributes:
        file: name of the recording.
        channel: A or B.
        start: seconds.
        end: seconds.
        where: `file:line` that it was read from, for errors.
    """

    file: str
    channel: str
    start: float
    end: float
    where: str = field(default="", compare=False)

    @property
    def side(self) -> str:
        """The conversation side, such as `en_4156-A`."""
        return f"{self.file}-{self.channel}"

    @property
    def utterance(self) -> str:
        """The utterance id, such as `en_4156-A_030185-030248`: in centiseconds.

        They are cut off, not rounded, as in Kaldi's and ESPnet's ids of these sets.
        """
        return f"{self.side}_{int(self.start * 100):06d}-{int(self.end * 100):06d}"


def read_pem(path: Path) -> list[Span]:
    """Read a PEM.

    Raises:
        InputError: it can't be read, is empty or not UTF-8, a line is not as above, or
            two segments of a side are the same or overlap; file and line are named.
    """
    lines = data_lines(read_text(path), path)
    spans = [parse_span(line.split()[:5], where) for where, line in lines]
    check_spans(path, spans)
    return spans


def write_pem(path: Path, spans: Iterable[Span]) -> None:
    """Write a PEM; the speaker field is the side."""
    path.write_text(
        "".join(f"{format_span(span)}\n" for span in spans), encoding="utf-8"
    )


def parse_span(fields: list[str], where: str) -> Span:
    """The span of a line from its fields: `file channel speaker start end`.

    Args:
        fields: the first five of the line.
        where: `file:line`, for errors.

    Raises:
        InputError: there are fewer, or the channel or the times are impossible.
    """
    if len(fields) < 5:
        raise InputError(
            f"{where}: expected 'file channel speaker start end', got "
            f"{' '.join(fields)[:60]!r}"
        )
    file, channel, _, start, end = fields
    if channel not in CHANNELS:
        raise InputError(f"{where}: expected channel A or B, got {channel}")
    try:
        span = Span(file, channel, float(start), float(end), where)
    except ValueError:
        raise InputError(
            f"{where}: expected start and end in seconds, got {start} {end}"
        ) from None
    if not 0 <= span.start < span.end < math.inf:
        raise InputError(f"{where}: expected 0 <= start < end, got {start} {end}")
    return span


def format_span(span: Span) -> str:
    """The fields of a span; the speaker is the side."""
    side = f"{span.file}_{span.channel}"
    start, end = _seconds(span.start), _seconds(span.end)
    return f"{span.file} {span.channel} {side} {start} {end}"


def _seconds(value: float) -> str:
    return f"{value:.3f}".removesuffix("0")


def check_spans(path: Path, spans: list[Span]) -> None:
    """Check that the file `path` has spans, and that they don't overlap.

    Raises:
        InputError: see `check_overlaps`.
    """
    if not spans:
        raise InputError(f"{path}: has comments only, no segments")
    check_overlaps(spans)


def check_overlaps(spans: Iterable[Span]) -> None:
    """Check that no two segments of a side are the same, or overlap by much.

    Raises:
        InputError: naming both.
    """
    ordered = sorted(spans, key=attrgetter("side", "start", "end"))
    for before, span in pairwise(ordered):
        if before.side != span.side:
            continue
        if before.utterance == span.utterance:
            raise InputError(f"{span.where}: {span.utterance} is at {before.where} too")
        if span.start < before.end - _OVERLAP or span.end <= before.end:
            raise InputError(
                f"{span.where}: starts at {span.start} s, but the segment at "
                f"{before.where} of the same side ends at {before.end} s"
            )
