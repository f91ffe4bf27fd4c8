"""Switchboard transcripts in the form of the MS98 release (Mississippi State, 1998).

A file holds one side of a conversation, a line a segment:
`sw2001A-ms98-a-0002 0.977625 11.561375 hi um yeah i'd like to talk`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.errors import InputError

_FILE = re.compile(r"sw(\d{4})([AB])-ms98-a-trans\.text")
_LINE = re.compile(r"(sw\d{4}[AB])-ms98-a-\d{4}\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\S.*)")


@dataclass(frozen=True)
class Segment:
    """A stretch of one channel: start and end in seconds, and the text with marks."""

    start: float
    end: float
    text: str


def transcript_path(conversation: str, side: str) -> Path:
    """Where the release keeps a transcript: `2001`, `A` -> `20/2001/sw2001A-...`."""
    name = f"sw{conversation}{side}-ms98-a-trans.text"
    return Path(conversation[:2], conversation, name)


def write_transcript(
    root: Path, conversation: str, side: str, segments: Iterable[Segment]
) -> None:
    """Write one side's transcript below `root`, at its place in the release."""
    path = root / transcript_path(conversation, side)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"sw{conversation}{side}-ms98-a-{number:04d} "
        f"{segment.start:.6f} {segment.end:.6f} {segment.text}\n"
        for number, segment in enumerate(segments, start=1)
    ]
    path.write_text("".join(lines), encoding="utf-8")


def read_transcript(path: Path) -> list[Segment]:
    """Read one side's transcript.

    Raises:
        InputError: a line that is not `id start end text`, belongs to another side, or
            whose times go backwards; the message names file and line.
    """
    named = _FILE.fullmatch(path.name)
    if named is None:
        raise InputError(f"{path}: not named like sw2001A-ms98-a-trans.text")
    side = f"sw{named[1]}{named[2]}"
    segments: list[Segment] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        segment = _parse_line(line.strip(), f"{path}:{number}", side)
        if segments and segment.start < segments[-1].start:
            raise InputError(f"{path}:{number}: starts before the line above it")
        segments.append(segment)
    if not segments:
        raise InputError(f"{path}: empty transcript")
    return segments


def _parse_line(line: str, where: str, side: str) -> Segment:
    found = _LINE.fullmatch(line)
    if found is None:
        raise InputError(
            f"{where}: expected 'sw2001A-ms98-a-0001 start end text', got {line[:60]!r}"
        )
    if found[1] != side:
        raise InputError(
            f"{where}: expected a segment of {side}, got one of {found[1]}"
        )
    segment = Segment(float(found[2]), float(found[3]), found[4])
    if segment.end <= segment.start:
        raise InputError(
            f"{where}: the segment ends at {segment.end} s, before its start at "
            f"{segment.start} s"
        )
    return segment


def plain_words(text: str) -> list[str]:
    """The words of a segment, in lower case and without marks.

    Silence, noises, laughter between words and asides are dropped. A word spoken with
    a laugh, a coinage and a variant are the word (`[laughter-story]`, `{alrighty}`,
    `them_1`); of `[said/meant]` what was said; a partial word keeps what was said of
    it and a hyphen (`th[at]-` is `th-`, `-[th]is` is `-is`).
    """
    return [word for token in text.lower().split() if (word := _plain_word(token))]


def _plain_word(token: str) -> str:
    if re.fullmatch(r"<.*>", token):
        return ""
    token = re.sub(r"^\[laughter-(.+)\]$", r"\1", token)
    token = re.sub(r"^\[(.+)/.*\](-?)$", r"\1\2", token)
    if re.fullmatch(r"\[[^][]*\]", token):
        return ""
    token = re.sub(r"\[[^][]*\]", "", token)
    token = re.sub(r"^\{(.*)\}$", r"\1", token)
    return re.sub(r"_\d+$", "", token).strip("[]{}")
