"""The files of a NIST Hub5 evaluation: PEM (what to recognise) and STM (reference).

PEM: `file channel speaker start end`. STM: the same, then `<labels>` and the text.
Lines that start with `;;` are comments. Times are in seconds.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.data.speech_set import utterance_id
from espnet_distopt.errors import InputError

IGNORED = "ignore_time_segment_in_scoring"


@dataclass(frozen=True)
class Span:
    """A stretch of one channel of a recording; `start` and `end` in seconds."""

    file: str
    channel: str
    start: float
    end: float

    @property
    def side(self) -> str:
        """The conversation side, such as `en_4156-A`."""
        return f"{self.file}-{self.channel}"

    @property
    def utterance(self) -> str:
        """The utterance id, such as `en_4156-A_030185-030248` (centiseconds)."""
        return utterance_id(self.side, self.start, self.end)


@dataclass(frozen=True)
class Reference:
    """A line of an STM: where, which subset (`O,SWB`), and the text with its marks."""

    span: Span
    labels: str
    text: str


def read_pem(path: Path) -> list[Span]:
    """Read a PEM. Raises InputError with file and line for a line it can't read."""
    return [_span(fields[:5], where) for fields, where in _lines(path, 5)]


def read_stm(path: Path) -> list[Reference]:
    """Read an STM. Raises InputError with file and line for a line it can't read."""
    references = []
    for fields, where in _lines(path, 5):
        rest = fields[5:]
        labels = rest.pop(0)[1:-1] if rest and re.fullmatch("<.*>", rest[0]) else ""
        references.append(Reference(_span(fields[:5], where), labels, " ".join(rest)))
    return references


def write_pem(path: Path, spans: Iterable[Span]) -> None:
    """Write a PEM; the speaker field is the side."""
    path.write_text("".join(f"{_format(span)}\n" for span in spans), encoding="utf-8")


def write_stm(path: Path, header: str, references: Iterable[Reference]) -> None:
    """Write an STM after a header of comment lines."""
    lines = [
        f"{_format(reference.span)} <{reference.labels}> {reference.text}\n"
        for reference in references
    ]
    path.write_text(header + "".join(lines), encoding="utf-8")


def reference_words(text: str) -> list[str]:
    """The words of a reference for character or word counts outside hub5 scoring.

    Lower case; hesitations, `<tags>` and segments marked as not scored are dropped,
    brackets removed, and of alternatives `{ a / b }` the first is taken. The STM
    itself stays as it is: hub5 scoring needs its marks.
    """
    text = re.sub(r"\{\s*([^{}/]*)[^{}]*\}", r"\1", text.lower())
    words = [
        re.sub(r"[()]", "", token)
        for token in text.split()
        if not re.fullmatch(rf"\(*%hesitation\)*|<.*>|@|{IGNORED}", token)
    ]
    return [word for word in words if word]


def mend_stm(text: str) -> str:
    """Mend what `sclite` rejects in the published STM: a doubled bracket, asides."""
    lines = []
    for line in text.splitlines():
        if not line.startswith(";;"):
            line = re.sub(r"\s*<[BE]_ASIDE>", "", line.replace("((", "(", 1))
        lines.append(line + "\n")
    return "".join(lines)


def _lines(path: Path, fields: int) -> Iterator[tuple[list[str], str]]:
    """The fields of each line that is not a comment, and `file:line`."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(";;") or not line.strip():
            continue
        found = line.split()
        where = f"{path}:{number}"
        if len(found) < fields:
            raise InputError(
                f"{where}: expected 'file channel speaker start end', got {line[:60]!r}"
            )
        yield found, where


def _span(fields: list[str], where: str) -> Span:
    file, channel, _, start, end = fields
    try:
        span = Span(file, channel, float(start), float(end))
    except ValueError:
        raise InputError(
            f"{where}: expected start and end in seconds, got {start} {end}"
        ) from None
    if channel not in ("A", "B"):
        raise InputError(f"{where}: expected channel A or B, got {channel}")
    if not 0 <= span.start < span.end:
        raise InputError(f"{where}: expected 0 <= start < end, got {start} {end}")
    return span


def _format(span: Span) -> str:
    side = f"{span.file}_{span.channel}"
    return f"{span.file} {span.channel} {side} {span.start:.2f} {span.end:.2f}"
