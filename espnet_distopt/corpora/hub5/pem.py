"""PEM files of a NIST Hub5 evaluation, which list the stretches to recognise.

Each line is `file channel speaker start end`, with times in seconds. Lines that start
with `;;` are comments.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from espnet_distopt.corpora.hub5.channels import read_channel
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text

# Rounding may let a segment end a little after the next one starts. That is harmless,
# as the scorer places each word by its midpoint. With a larger overlap it gives words
# of one segment to the other.
_OVERLAP = 0.5


@dataclass(frozen=True)
class Span:
    """A stretch of one channel of a recording.

    Attributes:
        file: The name of the recording.
        channel: A or B; a capital letter or a number in general.
        start: Seconds from the recording's start.
        end: Seconds from the recording's start.
        where: The place `file:line` that it was read from, for messages.
    """

    file: str
    channel: str
    start: float
    end: float
    where: str = field(default="", compare=False)

    @property
    def side(self) -> str:
        """Return the conversation side, such as `en_4156-A`."""
        return f"{self.file}-{self.channel}"

    @property
    def utterance(self) -> str:
        """Return the utterance id, as `en_4156-A_030185-030248`, in centiseconds.

        The times are cut off, not rounded, as in the ids of Kaldi and ESPnet.
        """
        return f"{self.side}_{int(self.start * 100):06d}-{int(self.end * 100):06d}"


def read_pem(path: Path, log: Callable[[str], None] = print) -> list[Span]:
    """Read a PEM.

    Args:
        path: The file.
        log: Called with a warning if segments of a side overlap.

    Raises:
        InputError: The file can't be read, is empty or not UTF-8; a line is malformed;
            or two segments of a side are the same. The message names file and line.
    """
    lines = data_lines(read_text(path), path)
    spans = [parse_span(line.split()[:5], where) for where, line in lines]
    check_spans(path, spans, log)
    return spans


def write_pem(path: Path, spans: Iterable[Span]) -> None:
    """Write a PEM whose speakers are the sides of the conversations."""
    path.write_text(
        "".join(f"{format_span(span)}\n" for span in spans), encoding="utf-8"
    )


def parse_span(fields: list[str], where: str) -> Span:
    """Return the span that the fields `file channel speaker start end` describe.

    Args:
        fields: The first five fields of a line.
        where: The place that messages name, `file:line`.

    Raises:
        InputError: There are fewer fields, or the channel or the times are impossible.
    """
    if len(fields) < 5:
        raise InputError(
            f"{where}: expected 'file channel speaker start end', got "
            f"{' '.join(fields)[:60]!r}"
        )
    file, channel, _, start, end = fields
    channel = read_channel(channel, where)
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
    """Return the fields of a span's line, in which the side is the speaker."""
    side = f"{span.file}_{span.channel}"
    start, end = _seconds(span.start), _seconds(span.end)
    return f"{span.file} {span.channel} {side} {start} {end}"


def _seconds(value: float) -> str:
    return f"{value:.3f}".removesuffix("0")


def check_spans(path: Path, spans: list[Span], log: Callable[[str], None]) -> None:
    """Check that the file `path` has spans, and that none of them is there twice.

    Raises:
        InputError: It has none, or `check_overlaps` finds two that are the same.
    """
    if not spans:
        raise InputError(f"{path}: has comments only, no segments")
    check_overlaps(spans, log)


def check_overlaps(spans: Iterable[Span], log: Callable[[str], None]) -> None:
    """Check that no two segments of a side are the same, or overlap by much.

    Args:
        spans: The segments, in any order.
        log: Called with a warning if some overlap; the scorer takes them.

    Raises:
        InputError: Two are the same; the message names the places of both.
    """
    ordered = sorted(spans, key=attrgetter("side", "start", "end"))
    overlaps: list[str] = []
    for before, span in pairwise(ordered):
        if before.side != span.side:
            continue
        if before.utterance == span.utterance:
            raise InputError(f"{span.where}: {span.utterance} is at {before.where} too")
        if span.start < before.end - _OVERLAP or span.end <= before.end:
            overlaps.append(
                f"{span.where}: starts at {span.start} s, but the segment at "
                f"{before.where} of the same side ends at {before.end} s"
            )
    if overlaps:
        more = f" ({len(overlaps)} such segments)" if len(overlaps) > 1 else ""
        log(f"warning: {overlaps[0]}{more}: the scorer may mix up their words")
