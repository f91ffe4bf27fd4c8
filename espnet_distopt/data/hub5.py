"""The files of a NIST Hub5 evaluation: PEM (what to recognise) and STM (reference).

PEM: `file channel speaker start end`. STM: the same, then `<labels>` and the text.
Lines that start with `;;` are comments. Times are in seconds.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from espnet_distopt.data.hub5_text import (
    IGNORED,
    check_marks,
    mend_stm,
    reference_words,
)
from espnet_distopt.data.kaldi_dir import CHANNELS
from espnet_distopt.data.text_lines import data_lines, read_text
from espnet_distopt.errors import InputError

__all__ = [
    "IGNORED",
    "Reference",
    "Span",
    "check_labels",
    "check_overlaps",
    "mend_stm",
    "parse_stm",
    "read_pem",
    "read_stm",
    "reference_words",
    "write_pem",
    "write_stm",
]

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


@dataclass(frozen=True)
class Reference:
    """A line of an STM: where, which subset (`O,SWB`), and the text with its marks."""

    span: Span
    labels: str
    text: str


def read_pem(path: Path) -> list[Span]:
    """Read a PEM.

    Raises:
        InputError: it can't be read, is empty or not UTF-8, a line is not as above, or
            two segments of a side are the same or overlap; file and line are named.
    """
    lines = data_lines(read_text(path), path)
    spans = [_span(line.split()[:5], where) for where, line in lines]
    _check_some(path, spans)
    return spans


def read_stm(path: Path) -> list[Reference]:
    """Read an STM.

    Raises:
        InputError: as for a PEM, or a text's marks don't fit each other.
    """
    return parse_stm(read_text(path), path)


def parse_stm(text: str, path: Path) -> list[Reference]:
    """Read the text of an STM, in which line breaks are where the file has them.

    Args:
        text: of the whole file.
        path: named in errors.

    Raises:
        InputError: see `read_stm`.
    """
    references = [
        _reference(line.split(), where) for where, line in data_lines(text, path)
    ]
    _check_some(path, [reference.span for reference in references])
    return references


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


def check_labels(stm: str, references: Iterable[Reference]) -> None:
    """Check that an STM declares the labels it uses, for `sclite` ends without.

    Args:
        stm: its whole text.
        references: its lines, or those of them to check.

    Raises:
        InputError: a label has no line `;; LABEL "SWB" ...`.
    """
    declared = {name.lower() for name in re.findall(r';;\s*LABEL\s+"([^"]*)"', stm)}
    for reference in references:
        for label in filter(None, reference.labels.split(",")):
            if label.lower() not in declared:
                raise InputError(
                    f"{reference.span.where}: label {label} is not declared by a line "
                    f';; LABEL "{label}" "name" "description"'
                )


def write_pem(path: Path, spans: Iterable[Span]) -> None:
    """Write a PEM; the speaker field is the side."""
    path.write_text("".join(f"{_format(span)}\n" for span in spans), encoding="utf-8")


def write_stm(path: Path, header: str, references: Iterable[Reference]) -> None:
    """Write an STM after a header of comment lines; the speaker is the side."""
    lines = [f"{_format_reference(reference)}\n" for reference in references]
    path.write_text(header + "".join(lines), encoding="utf-8")


def _format_reference(reference: Reference) -> str:
    labels = f"<{reference.labels}> " if reference.labels else ""
    return f"{_format(reference.span)} {labels}{reference.text}".rstrip()


def _format(span: Span) -> str:
    side = f"{span.file}_{span.channel}"
    start, end = _seconds(span.start), _seconds(span.end)
    return f"{span.file} {span.channel} {side} {start} {end}"


def _seconds(value: float) -> str:
    return f"{value:.3f}".removesuffix("0")


def _reference(fields: list[str], where: str) -> Reference:
    span = _span(fields[:5], where)
    rest = fields[5:]
    labels = ""
    if rest and rest[0].startswith("<"):
        labels = rest.pop(0)
        if not re.fullmatch("<[^<>]+>", labels):
            raise InputError(f"{where}: expected labels like <O,SWB>, got {labels}")
    check_marks(rest, where)
    return Reference(span, labels[1:-1], " ".join(rest))


def _span(fields: list[str], where: str) -> Span:
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


def _check_some(path: Path, spans: list[Span]) -> None:
    if not spans:
        raise InputError(f"{path}: has comments only, no segments")
    check_overlaps(spans)
