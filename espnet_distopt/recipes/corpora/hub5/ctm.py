"""CTM files: recognised words with their times, as NIST's scorers read them.

Each line is a word, `file channel start duration word`; confidence, type and speaker
may follow. Times are in seconds. Lines that start with `;;` are comments. Alternative
words stand between lines whose times are asterisks and whose words are `<ALT_BEGIN>`,
`<ALT>` and `<ALT_END>`; only the scorer itself reads these.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.corpora.hub5.stm import read_channel, read_stm
from espnet_distopt.recipes.corpora.kaldi.directory import ArkPlace

_FIELDS = "'file channel start duration word'"
_ALTERNATIVES = ("<ALT_BEGIN>", "<ALT>", "<ALT_END>")


class Word(NamedTuple):
    """A recognized word, without blanks; its start and duration are in seconds.

    The channel is A or B; a capital letter or a number in general.
    """

    file: str
    channel: str
    start: float
    duration: float
    word: str


def read_ctm(path: Path) -> list[Word]:
    """Read a CTM, which is empty if nothing was recognized.

    Returns:
        The words, sorted by file, channel and start.

    Raises:
        InputError: The file can't be read or is not UTF-8, or a line is malformed; the
            message names file and line.
    """
    words = (_word(line, where) for where, line in _lines(path))
    return sorted(words, key=_place)


def words_by_side(path: Path) -> Counter[str]:
    """Count the words of each conversation side, such as `en_4156-A`.

    This reads every CTM that NIST's scorer takes, with alternatives, too; each word of
    them is counted.

    Raises:
        InputError: The file can't be read or is not UTF-8, or a line is malformed; the
            message names file and line.
    """
    sides: Counter[str] = Counter()
    for where, line in _lines(path):
        fields = line.split()
        if len(fields) > 4 and fields[2:4] == ["*", "*"]:
            if fields[4] not in _ALTERNATIVES:
                raise InputError(
                    f"{where}: expected {' or '.join(_ALTERNATIVES)} after * *, got "
                    f"{fields[4]!r}"
                )
        else:
            word = _word(line, where)
            sides[f"{word.file}-{word.channel}"] += 1
    return sides


def write_ctm(path: Path, words: Iterable[Word]) -> None:
    """Write a CTM, whole or not at all, in the order that `sclite` wants.

    Raises:
        InputError: A word or file name has blanks or is empty, a channel is neither a
            letter nor a number, or a time is impossible.
    """
    write_text(path, format_ctm(words))


def format_ctm(words: Iterable[Word]) -> str:
    """Return the text of a CTM; parameters and errors as `write_ctm`."""
    return "".join(_format(word) for word in sorted(words, key=_place))


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    return data_lines(read_text(path, may_be_empty=True), path)


def _place(word: Word) -> tuple[str, str, float]:
    return word.file, word.channel, word.start


def _word(line: str, where: str) -> Word:
    fields = line.split()
    if not 5 <= len(fields) <= 8:
        raise InputError(f"{where}: expected {_FIELDS}, got {line[:60]!r}")
    file, channel, start, duration, text = fields[:5]
    channel = read_channel(channel, where)
    try:
        word = Word(file, channel, float(start), float(duration), text)
        confidence = float(fields[5]) if len(fields) > 5 else 1.0
    except ValueError:
        raise InputError(
            f"{where}: expected numbers for start, duration and confidence, got "
            f"{line[:60]!r}"
        ) from None
    _check(word, where)
    if not 0 <= confidence <= 1:
        raise InputError(f"{where}: expected a confidence from 0 to 1, got {fields[5]}")
    return word


def _format(word: Word) -> str:
    if word.file.split() != [word.file] or word.word.split() != [word.word]:
        raise InputError(f"CTM: expected names and words without blanks, got {word}")
    _check(word, "CTM")
    return (
        f"{word.file} {word.channel} {word.start:.3f} {word.duration:.3f} {word.word}\n"
    )


def _check(word: Word, where: str) -> None:
    read_channel(word.channel, where)
    if not (0 <= word.start < math.inf and 0 <= word.duration < math.inf):
        raise InputError(
            f"{where}: expected start and duration of at least 0 s, got {word.start} "
            f"and {word.duration}"
        )


Span = tuple[float, float]
"""The start and the end of a segment, in seconds of its recording."""


@dataclass(frozen=True)
class TimedWord:
    """A word, its first frame, and its end: the frame after its last one."""

    word: str
    first: int
    end: int


def reference_spans(data: Path) -> Mapping[str, Span]:
    """Return utterance -> the segment that the reference calls by this name.

    A data directory without an `stm` has no segments of a reference.

    Raises:
        InputError: the `stm` is malformed.
    """
    stm = data / "stm"
    references = read_stm(stm) if stm.is_file() else []
    return {r.span.utterance: (r.span.start, r.span.end) for r in references}


def placed(timed: TimedWord, place: ArkPlace, seconds: float, span: Span) -> Word:
    """Return a word with its times in the recording, cut at the ends of its segment.

    sclite gives a word to the first segment that ends after the word's middle. So a
    word in the last frame, which may begin where the segment ends, would be missing in
    its own segment and be an insertion in the next one. Here a word takes up at least
    one frame of its segment, whose end is then behind its middle. Words stay in order.

    A frame has so many seconds, and the span is the segment.
    """
    first, last = span
    least = min(seconds, last - first)
    start = min(max(place.start + timed.first * seconds, first), last - least)
    end = min(max(place.start + timed.end * seconds, start + least), last)
    return Word(place.file, place.channel, start, end - start, timed.word)
