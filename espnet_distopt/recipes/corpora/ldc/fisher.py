"""Fisher English: LDC2004S13 and LDC2005S13 (speech), LDC2004T19 and LDC2005T19 (text).

Both parts together have 11,699 telephone conversations of up to ten minutes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.recipes.corpora.kaldi.directory import SpeechSet, Utterance
from espnet_distopt.recipes.corpora.ldc.discs import (
    MAX_LOST,
    OVERSHOOT,
    Losses,
    call_seconds,
    find_files,
    name_recordings,
)

CONVERSATIONS = 11699
"""The number of conversations in both parts together."""

_LINE = re.compile(r"(\d+\.?\d*)\s+(\d+\.?\d*)\s+([ABab]):(.*)")


class FisherTurn(NamedTuple):
    """A line of a transcript: start and end in seconds, channel (A or B), and text."""

    start: float
    end: float
    channel: str
    text: str
    where: str


def read_fisher(
    speech: Sequence[Path],
    text: Sequence[Path],
    log: Callable[[str], None] = print,
    max_lost: float = MAX_LOST,
) -> SpeechSet:
    """Read all utterances that have words.

    Ids are Kaldi's, as `fe_03_00004-A-000738-000877`, with times in centiseconds that
    are cut off. As in Kaldi's recipe, lines with `((`, which tells that the transcriber
    was not sure, are dropped. Unlike there, marks of noise and laughter are dropped
    from the text, as they are from Switchboard's.

    Of two million segments, which were transcribed in haste, a few have no length or
    lie outside their recording. They are left out and counted, as are bad recordings,
    transcripts and lines.

    Args:
        speech: The directories that have `fe_03_NNNNN.sph` below them.
        text: The directories that have `fe_03_NNNNN.txt` below them; may be the same.
        log: Called with lines that tell what was found, and what differs from the
            published discs.
        max_lost: How much of each kind may be left out because it is bad, in percent.

    Returns:
        The set `fisher`, sorted by utterance id.

    Raises:
        InputError: Nothing is found, or more than `max_lost` percent is bad; the
            message names file and line of the first.
    """
    copies = Losses("files", max_lost)
    audio = _find(speech, "sph", "recordings", log, copies)
    transcripts = _find(text, "txt", "transcripts", log, copies)
    copies.check(log)
    both = sorted(audio.keys() & transcripts.keys())
    log(
        f"Fisher: {len(both)} conversations; recordings without transcript: "
        f"{len(audio) - len(both)}, transcripts without recording: "
        f"{len(transcripts) - len(both)}"
    )
    if not both:
        raise InputError(f"{text[0]}: no transcript is of a recording of {speech[0]}")
    conversations = Losses("conversations", max_lost)
    segments = Losses("segments", max_lost)
    utterances: list[Utterance] = []
    for name in both:
        try:
            seconds = call_seconds(audio[name])
            turns = read_transcript(transcripts[name], segments)
        except InputError as error:
            conversations.add(error)
            continue
        conversations.kept += 1
        utterances += _utterances(name, turns, seconds, segments)
    conversations.check(log)
    segments.check(log)
    if not utterances:
        raise InputError(f"{text[0]}: no words in any of {len(both)} transcripts")
    utterances.sort(key=attrgetter("id"))
    return SpeechSet("fisher", audio, tuple(utterances))


def read_transcript(path: Path, losses: Losses | None = None) -> list[FisherTurn]:
    """Read `fe_03_NNNNN.txt`: lines `start end A: words`, comments start with `#`.

    `losses` gets malformed lines; None makes them an error.

    Raises:
        InputError: The file can't be read, is empty or not UTF-8, belongs to another
            recording, or has a malformed line and none may be left out; the message
            names file and line.
    """
    losses = losses or Losses("lines")
    text = read_text(path)
    named = re.search(r"^#\s*(\S+)\.sph", text, re.MULTILINE)
    if named is None or named[1] != path.stem:
        raise InputError(
            f"{path}:1: expected '# {path.stem}.sph', got {text.split(chr(10))[0]!r}"
        )
    turns: list[FisherTurn] = []
    for where, line in data_lines(text, path, "#"):
        try:
            turns.append(_turn(line, where))
        except InputError as error:
            losses.add(error)
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
    roots: Sequence[Path],
    suffix: str,
    what: str,
    log: Callable[[str], None],
    copies: Losses,
) -> dict[str, Path]:
    paths: set[Path] = set()
    for root in roots:
        paths.update(find_files(root, rf"fe_03_\d{{5}}\.{suffix}"))
    if not paths:
        names = ", ".join(map(str, roots))
        raise InputError(f"{names}: no {what} (fe_03_NNNNN.{suffix}) below it")
    if len(paths) != CONVERSATIONS:
        log(f"warning: {len(paths)} {what} of Fisher, all parts have {CONVERSATIONS}")
    return name_recordings(sorted(paths), copies)


def _turn(line: str, where: str) -> FisherTurn:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise InputError(f"{where}: expected 'start end A: words', got {line[:60]!r}")
    start, end, channel = float(found[1]), float(found[2]), found[3].upper()
    turn = FisherTurn(start, end, channel, found[4], where)
    if turn.end < turn.start:
        raise InputError(
            f"{where}: expected start <= end, got {turn.start} and {turn.end}"
        )
    return turn


def _utterances(
    name: str, turns: Iterable[FisherTurn], seconds: float, losses: Losses
) -> Iterator[Utterance]:
    """Yield the utterances of a conversation that has so many seconds."""
    places: dict[str, str] = {}
    for turn in turns:
        words = plain_words(turn.text)
        if not words:
            continue
        end = min(turn.end, int(seconds * 100) / 100)
        identity = _utterance_id(name, turn)
        if turn.end > seconds + OVERSHOOT or end <= turn.start:
            losses.add(f"{turn.where}: no length, or outside of {seconds:.2f} s")
        elif identity in places:
            losses.add(f"{turn.where}: {identity} is at {places[identity]} too")
        else:
            losses.kept += 1
            places[identity] = turn.where
            text = " ".join(words)
            yield Utterance(identity, name, turn.channel, turn.start, end, text)


def _utterance_id(name: str, turn: FisherTurn) -> str:
    start, end = int(turn.start * 100), int(turn.end * 100)
    return f"{name}-{turn.channel}-{start:06d}-{end:06d}"
