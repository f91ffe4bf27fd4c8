"""Switchboard transcripts in the form of the MS98 release (Mississippi State, 1998).

The release has two files for each side of a conversation. The transcript has a segment
on each line (`sw2001A-ms98-a-0002 0.977625 11.561375 hi um yeah i'd like to talk`). The
word file has a word of these segments on each line
(`sw2001A-ms98-a-0002 0.977625 1.256125 hi`). One dictionary is for all conversations
(`IBM ay b iy eh m`). Times are in seconds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from espnet_distopt.corpora.ldc.losses import Losses
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text

DICTIONARY = "sw-ms98-dict.text"

_FILE = re.compile(r"sw(\d{4})([AB])-ms98-a-(?:trans|word)\.text", re.IGNORECASE)
_TIME = r"(\d+\.?\d*)"
_LINE = re.compile(
    rf"sw(\d{{4}}[AB])-ms98-a-(\d{{4}})\s+{_TIME}\s+{_TIME}\s+(\S.*)", re.IGNORECASE
)

# Kaldi's swbd1_map_words.pl has the same rules; it applies each once, in this order.
_WORD_RULES = [
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"^\[laughter-(.+)\](-?)$", r"\1\2"),  # [laughter-story]
        (r"^\[(.+)/.+\](-?)$", r"\1\2"),  # [said/meant], even [sa[id]-/meant]
        (r"^-?\[[^][]+\](.+)$", r"-\1"),  # -[an]y: its start was not said
        (r"^(.+)\[[^][]+\]-?$", r"\1-"),  # ab[solute]-: its end was not said
        (r"([^][]+)\[.+\]$", r"\1"),  # ex[specially]-/especially], a slip
        (r"^\{(.+)\}$", r"\1"),  # {yuppiedom}, a coinage
        (r"([a-z])\[[^][]+\]([a-z])", r"\1-\2"),  # ammu[n]it-: a gap inside
        (r"_\d", ""),  # them_1, one of several pronunciations
    )
]
_ASIDE = re.compile(r"<[be]_aside>", re.IGNORECASE)
_MARK = re.compile(r"\[[^][]*\]")


@dataclass(frozen=True)
class Ms98Segment:
    """A stretch of one channel.

    Attributes:
        start: Seconds from the recording's start.
        end: Seconds from the recording's start.
        text: Words and marks.
        where: The place `file:line` that it was read from, for messages.
    """

    start: float
    end: float
    text: str
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class Ms98Word:
    """A word or a mark, the number of its segment (from 1), and its times (seconds)."""

    segment: int
    start: float
    end: float
    word: str


@dataclass(frozen=True)
class Entry:
    """A word of the dictionary, in its own case, and its phones."""

    word: str
    phones: tuple[str, ...]


def transcript_path(conversation: str, side: str, kind: str = "trans") -> Path:
    """Return where the release keeps a transcript, as `20/2001/sw2001A-...`.

    Args:
        conversation: The number of the conversation, four digits.
        side: A or B.
        kind: `trans` for the transcript, `word` for the word file.
    """
    name = f"sw{conversation}{side}-ms98-a-{kind}.text"
    return Path(conversation[:2], conversation, name)


def write_transcript(
    root: Path, conversation: str, side: str, segments: Iterable[Ms98Segment]
) -> None:
    """Write one side's transcript below `root`, at its place in the release."""
    path = root / transcript_path(conversation, side)
    numbered = enumerate(segments, start=1)
    _write_lines(
        path, (_line(path, number, each, each.text) for number, each in numbered)
    )


def write_words(
    root: Path, conversation: str, side: str, words: Iterable[Ms98Word]
) -> None:
    """Write one side's word file below `root`, at its place in the release."""
    path = root / transcript_path(conversation, side, "word")
    _write_lines(path, (_line(path, each.segment, each, each.word) for each in words))


def write_dictionary(root: Path, entries: Iterable[Entry]) -> None:
    """Write the dictionary into `root`, after a comment such as the release has."""
    lines = (f"{entry.word} {' '.join(entry.phones)}" for entry in entries)
    _write_lines(root / DICTIONARY, ("# word, phones", "", *lines))


def _line(path: Path, number: int, span: Ms98Segment | Ms98Word, text: str) -> str:
    side = path.name.partition("-")[0]
    return f"{side}-ms98-a-{number:04d} {span.start:.6f} {span.end:.6f} {text}"


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")


def read_transcript(path: Path, losses: Losses | None = None) -> list[Ms98Segment]:
    """Read one side's transcript.

    Args:
        path: The file.
        losses: Gets the lines that are not `id start end text`, belong to another side,
            have the number of a line above them, or whose times go backwards; None
            makes them an error.

    Raises:
        InputError: The file can't be read, or a line is bad and none may be left out;
            the message names file and line.
    """
    losses = losses or Losses("lines")
    segments: dict[int, Ms98Segment] = {}
    for number, segment in _read_lines(path, losses):
        if number in segments:
            losses.add(f"{segment.where}: a second segment {number:04d}")
        else:
            segments[number] = segment
    return list(segments.values())


def read_words(path: Path) -> list[Ms98Word]:
    """Read one side's word file.

    Raises:
        InputError: A line is not `id start end word` or belongs to another side, or its
            time or its segment goes backwards; the message names file and line.
    """
    words: list[Ms98Word] = []
    for number, line in _read_lines(path, Losses("lines")):
        if len(line.text.split()) > 1:
            raise InputError(f"{line.where}: expected one word, got {line.text[:60]!r}")
        if words and number < words[-1].segment:
            raise InputError(
                f"{line.where}: a word of segment {number:04d} after one of segment "
                f"{words[-1].segment:04d}"
            )
        words.append(Ms98Word(number, line.start, line.end, line.text))
    return words


def _read_lines(path: Path, losses: Losses) -> Iterator[tuple[int, Ms98Segment]]:
    """Yield the number and the content of each line of one side, ordered by start."""
    named = _FILE.fullmatch(path.name)
    if named is None:
        raise InputError(
            f"{path}: not named like sw2001A-ms98-a-trans.text or -word.text"
        )
    start = 0.0
    for where, line in data_lines(read_text(path), path, comment="#"):
        try:
            number, segment = _parse_line(line.strip(), where, named[1] + named[2])
        except InputError as error:
            losses.add(error)
            continue
        if segment.start < start:
            losses.add(f"{where}: starts before the line above it")
            continue
        start = segment.start
        yield number, segment


def _parse_line(line: str, where: str, side: str) -> tuple[int, Ms98Segment]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise InputError(
            f"{where}: expected 'sw2001A-ms98-a-0001 start end text', got {line[:60]!r}"
        )
    if found[1].upper() != side.upper():
        raise InputError(
            f"{where}: expected a segment of sw{side}, got one of sw{found[1]}"
        )
    start, end = float(found[3]), float(found[4])
    if end < start:
        raise InputError(f"{where}: ends at {end} s, before its start at {start} s")
    return int(found[2]), Ms98Segment(start, end, found[5], where)


def read_dictionary(path: Path, losses: Losses | None = None) -> list[Entry]:
    """Read the dictionary; comments (`#`) and blank lines are skipped.

    Args:
        path: The file.
        losses: Gets the lines that are not a word and its phones; None makes them an
            error.

    Raises:
        InputError: The file can't be read or has no entries, or a line is bad and none
            may be left out; the message names file and line.
    """
    losses = losses or Losses("lines")
    entries: list[Entry] = []
    for where, line in data_lines(read_text(path), path, comment="#"):
        word, *phones = line.split()
        if not phones or not all(phone.isalpha() for phone in phones):
            losses.add(
                f"{where}: expected a word and its phones, as in 'IBM ay b iy eh m', "
                f"got {line[:60]!r}"
            )
            continue
        entries.append(Entry(word, tuple(phones)))
        losses.kept += 1
    if not entries:
        raise InputError(
            f"{path}: only comments, expected a word and its phones a line"
        )
    return entries


def plain_words(text: str, acronyms: Mapping[str, str] | None = None) -> list[str]:
    """Return the words of a segment, in lower case and without marks.

    The result is the training text of Kaldi's and ESPnet's recipes. [silence] and the
    marks of asides are dropped, while the words of asides stay. A word spoken with a
    laugh (`[laughter-story]`), a coinage (`{alrighty}`) and a variant (`them_1`) become
    the plain word. `[said/meant]` becomes what was said. A partial word keeps what was
    said of it and gets a hyphen: `th[at]-` becomes `th-`, and `-[th]is` becomes `-is`.
    Dots are removed.

    Two things differ from these recipes on purpose. [noise], [vocalized-noise] and
    [laughter] are dropped, too, because this project's models transcribe words. And a
    word with a gap, `ammu[n]it-`, becomes `ammu-it-`, as a comment of Kaldi's says;
    Kaldi's script makes `ammn-t-` of it.

    Args:
        text: The text of a segment, with marks.
        acronyms: The words to spell out (`IBM` -> `i b m`), in the case of the text.
    """
    acronyms = acronyms or {}
    words = (plain_word(token) for token in _ASIDE.sub(" ", text).split())
    spelled = " ".join(
        acronyms.get(word, word) for word in words if not _MARK.fullmatch(word)
    )
    return spelled.lower().replace("._", " ").replace(".", "").split()


@cache
def plain_word(token: str) -> str:
    """Return a word without the marks around and inside it, in its own case."""
    if token.isalpha():
        return token
    for pattern, replacement in _WORD_RULES:
        token = pattern.sub(replacement, token, count=1)
    return token
