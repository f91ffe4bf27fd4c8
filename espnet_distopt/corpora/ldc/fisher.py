"""Fisher English: LDC2004S13 and LDC2005S13 (speech), LDC2004T19 and LDC2005T19 (text).

Both parts together have 11,699 telephone conversations of up to ten minutes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from espnet_distopt.corpora.kaldi.speech_set import SpeechSet, Utterance
from espnet_distopt.corpora.ldc.discs import (
    OVERSHOOT,
    call_seconds,
    find_files,
    name_recordings,
)
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text

CONVERSATIONS = 11699
"""The number of conversations in both parts together."""

_LINE = re.compile(r"(\d+\.?\d*)\s+(\d+\.?\d*)\s+([AB]):(.*)")


class FisherTurn(NamedTuple):
    """A line of a transcript: start and end in seconds, channel (A or B), and text."""

    start: float
    end: float
    channel: str
    text: str
    where: str


def read_fisher(
    speech: Sequence[Path], text: Sequence[Path], log: Callable[[str], None] = print
) -> SpeechSet:
    """Read all utterances that have words.

    Ids are Kaldi's, as `fe_03_00004-A-000738-000877`, with times in centiseconds that
    are cut off. As in Kaldi's recipe, lines with `((`, which tells that the transcriber
    was not sure, are dropped. Unlike there, marks of noise and laughter are dropped
    from the text, as they are from Switchboard's.

    Of two million segments, which were transcribed in haste, a few have no length or
    lie outside their recording. They are dropped and counted.

    Args:
        speech: The directories that have `fe_03_NNNNN.sph` below them.
        text: The directories that have `fe_03_NNNNN.txt` below them; may be the same.
        log: Called with lines that tell what was found, and what differs from the
            published discs.

    Returns:
        The set `fisher`, sorted by utterance id.

    Raises:
        InputError: Nothing is found, two files have the same name, a line is not
            `start end A: words`, or more than one segment in a hundred lies outside
            its recording.
    """
    audio = _find(speech, "sph", "recordings", log)
    transcripts = _find(text, "txt", "transcripts", log)
    both = sorted(audio.keys() & transcripts.keys())
    log(
        f"Fisher: {len(both)} conversations; recordings without transcript: "
        f"{len(audio) - len(both)}, transcripts without recording: "
        f"{len(transcripts) - len(both)}"
    )
    if not both:
        raise InputError(f"{text[0]}: no transcript is of a recording of {speech[0]}")
    utterances: list[Utterance] = []
    outside: list[str] = []
    for name in both:
        turns = read_transcript(transcripts[name])
        utterances += _utterances(name, turns, call_seconds(audio[name]), outside)
    _check_outside(outside, len(utterances), log)
    utterances.sort(key=attrgetter("id"))
    return SpeechSet("fisher", audio, tuple(utterances))


def read_transcript(path: Path) -> list[FisherTurn]:
    """Read `fe_03_NNNNN.txt`: lines `start end A: words`, comments start with `#`.

    Raises:
        InputError: The file can't be read, is empty or not UTF-8, belongs to another
            recording, or has a malformed line; the message names file and line.
    """
    text = read_text(path)
    named = re.search(r"^#\s*(\S+)\.sph", text, re.MULTILINE)
    if named is None or named[1] != path.stem:
        raise InputError(
            f"{path}:1: expected '# {path.stem}.sph', got {text.split(chr(10))[0]!r}"
        )
    turns = [_turn(line, where) for where, line in data_lines(text, path, "#")]
    if not turns:
        raise InputError(f"{path}: empty transcript")
    return turns


def plain_words(text: str) -> list[str]:
    """Return the words of a turn, in lower case and without marks.

    A turn of which the transcriber was not sure, as `((` tells, has no words here. Tags
    such as `[laughter]` are dropped. Spelled letters lose their periods, as in
    Switchboard's text: `t._v.` becomes `t v`.
    """
    if "((" in text:
        return []
    text = re.sub(r"\[[^][]*\]|<[^<>]*>", " ", text.lower())
    text = text.replace("._", " ").replace(".", "")
    return [word for word in text.split() if re.search(r"\w", word)]


def _find(
    roots: Sequence[Path], suffix: str, what: str, log: Callable[[str], None]
) -> dict[str, Path]:
    paths: set[Path] = set()
    for root in roots:
        paths.update(find_files(root, rf"fe_03_\d{{5}}\.{suffix}"))
    if not paths:
        names = ", ".join(map(str, roots))
        raise InputError(f"{names}: no {what} (fe_03_NNNNN.{suffix}) below it")
    if len(paths) != CONVERSATIONS:
        log(f"warning: {len(paths)} {what} of Fisher, all parts have {CONVERSATIONS}")
    return name_recordings(sorted(paths))


def _turn(line: str, where: str) -> FisherTurn:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise InputError(f"{where}: expected 'start end A: words', got {line[:60]!r}")
    turn = FisherTurn(float(found[1]), float(found[2]), found[3], found[4], where)
    if turn.end < turn.start:
        raise InputError(
            f"{where}: expected start <= end, got {turn.start} and {turn.end}"
        )
    return turn


def _utterances(
    name: str, turns: Iterable[FisherTurn], seconds: float, outside: list[str]
) -> Iterator[Utterance]:
    """Yield a conversation's utterances; add the places of bad turns to `outside`."""
    places: dict[str, str] = {}
    for turn in turns:
        words = plain_words(turn.text)
        if not words:
            continue
        end = min(turn.end, int(seconds * 100) / 100)
        if turn.end > seconds + OVERSHOOT or end <= turn.start:
            outside.append(turn.where)
            continue
        identity = _utterance_id(name, turn)
        if identity in places:
            raise InputError(f"{turn.where}: {identity} is at {places[identity]} too")
        places[identity] = turn.where
        text = " ".join(words)
        yield Utterance(identity, name, turn.channel, turn.start, end, text)


def _utterance_id(name: str, turn: FisherTurn) -> str:
    start, end = int(turn.start * 100), int(turn.end * 100)
    return f"{name}-{turn.channel}-{start:06d}-{end:06d}"


def _check_outside(outside: list[str], inside: int, log: Callable[[str], None]) -> None:
    if not outside:
        return
    message = f"{len(outside)} of {len(outside) + inside} segments have no length or "
    message += f"lie outside their recording, the first is {outside[0]}"
    if len(outside) > inside / 100:
        raise InputError(f"{message}: do speech and transcripts belong together?")
    log(f"dropped: {message}")
