"""Switchboard-1 (LDC97S62) with its MS98 transcripts: reading and splitting.

The corpus has 2435 or 2438 telephone conversations, depending on the pressing of the
discs, about 300 hours. Its documentation has a table of who called whom, conv.tab (or
conv_tab.csv). Each line of that is a conversation: its number, whether it is active,
the personal numbers (PIN) of the caller and the callee, and fields that are not used
here, as in `2001, "Y", 1020, 1044, 303, 0, 910304, 1218, 1222, , `.
"""

import csv
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.recipes.corpora.kaldi.directory import (
    SpeechSet,
    Utterance,
    centiseconds,
    utterance_id,
)
from espnet_distopt.recipes.corpora.ldc.discs import (
    MAX_LOST,
    OVERSHOOT,
    Losses,
    call_seconds,
    find_file,
    find_files,
    name_recordings,
)
from espnet_distopt.recipes.corpora.ldc.ms98 import (
    Ms98Segment,
    find_acronyms,
    plain_words,
    read_dictionary,
    read_transcript,
)


def read_conv_tab(path: Path, losses: Losses | None = None) -> dict[str, str]:
    """Read who speaks on which side.

    `losses` gets the lines that have no conversation and two PINs, and second lines of
    a conversation; None makes them an error.

    Returns:
        The PIN of each conversation side: `sw02001-A` (the caller) -> `1020`.

    Raises:
        InputError: The file can't be read or has no conversations, or a line is bad and
            none may be left out; the message names file and line.
    """
    losses = losses or Losses("lines")
    speakers: dict[str, str] = {}
    for where, line in data_lines(read_text(path), path, comment="#"):
        row = next(csv.reader([line], skipinitialspace=True))
        conversation, *rest = (field.strip() for field in row)
        if not speakers and conversation.startswith("conv"):
            continue  # the names of the columns
        if len(rest) < 3 or not all(
            field.isdecimal() for field in (conversation, rest[1], rest[2])
        ):
            losses.add(
                f"{where}: expected 'conversation, active, PIN of side A, PIN of side "
                f"B, ...' as in '2001, Y, 1020, 1044', got {line[:60]!r}"
            )
            continue
        name = f"sw{int(conversation):05d}"
        if f"{name}-A" in speakers:
            losses.add(f"{where}: a second line of conversation {conversation}")
            continue
        speakers |= {f"{name}-A": rest[1], f"{name}-B": rest[2]}
        losses.kept += 1
    if not speakers:
        raise InputError(f"{path}: no conversations in it")
    return speakers


def write_conv_tab(path: Path, speakers: Mapping[str, str]) -> None:
    """Write the table, with the columns that `read_conv_tab` needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f'{name[3:]}, "Y", {speakers[f"{name}-A"]}, {speakers[f"{name}-B"]}\n'
        for name in _conversations(speakers)
    ]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def _conversations(sides: Iterable[str]) -> list[str]:
    return sorted({side.rpartition("-")[0] for side in sides})


_PRESSINGS = (2435, 2438)  # recordings of the whole corpus, by pressing


def read_swb1(
    root: Path,
    transcripts: Path | None = None,
    log: Callable[[str], None] = print,
    max_lost: float = MAX_LOST,
) -> SpeechSet:
    """Read all utterances that have words.

    As in Kaldi's recipe, recordings without transcripts and transcripts without
    recording are left out; the log tells how many. Bad recordings, transcripts, lines,
    and segments that lie outside their recording are left out and counted, too, unless
    they are many. A segment that ends a little after its recording is cut.

    Args:
        root: The directory that has the recordings `sw0NNNN.sph` below it.
        transcripts: The directory that has `swNNNN{A,B}-ms98-a-trans.text` and
            `sw-ms98-dict.text` below it; None for `root`.
        log: Called with lines that tell what was found and what is missing.
        max_lost: How much of each kind may be left out because it is bad, in percent.

    Returns:
        The whole corpus, sorted by utterance id.

    Raises:
        InputError: Nothing is found, the dictionary is missing, or more than `max_lost`
            percent is bad; the message names file and line of the first.
    """
    copies = Losses("files", max_lost)
    audio = name_recordings(find_files(root, r"sw0\d{4}\.sph"), copies)
    if not audio:
        raise InputError(f"{root}: no recordings (sw0NNNN.sph) below it")
    sides = Losses("conversation sides", max_lost)
    conversations = _find_transcripts(transcripts or root, copies, sides)
    copies.check(log)
    dictionary = find_file(
        transcripts or root, r"sw-ms98-dict\.text", "dictionary of the MS98 transcripts"
    )
    entries = Losses("entries of the dictionary", max_lost)
    acronyms = find_acronyms(read_dictionary(dictionary, entries))
    entries.check(log)
    _log_counts(audio, conversations, log)
    segments = Losses("segments with words", max_lost)
    utterances: list[Utterance] = []
    for recording, path in audio.items():
        found = conversations.get(recording, {})
        try:
            seconds = call_seconds(path) if found else 0.0
        except InputError as error:
            for _ in found:
                sides.add(error)
            continue
        for channel, transcript in found.items():
            try:
                read = read_transcript(transcript, segments)
            except InputError as error:
                sides.add(error)
                continue
            sides.kept += 1
            utterances += _utterances(
                read, recording, channel, seconds, acronyms, segments
            )
    sides.check(log)
    segments.check(log)
    if not utterances:
        raise InputError(
            f"{transcripts or root}: no words of any of the recordings below {root}"
        )
    log(f"{len(utterances)} utterances with words")
    return SpeechSet("swb1", audio, tuple(sorted(utterances, key=lambda u: u.id)))


def _find_transcripts(
    root: Path, copies: Losses, losses: Losses
) -> dict[str, dict[str, Path]]:
    """Return the transcripts of each conversation (`sw02001`) by side (A and B)."""
    conversations: dict[str, dict[str, Path]] = {}
    for path in find_files(root, r"sw\d{4}[AB]-ms98-a-trans\.text"):
        sides = conversations.setdefault(f"sw0{path.name[2:6]}", {})
        side = path.name[6].upper()
        if side in sides:
            copies.add(f"{path}: a copy of it is at {sides[side]}; keep one")
        else:
            sides[side] = path
            copies.kept += 1
    if not conversations:
        raise InputError(
            f"{root}: no transcripts (swNNNNA-ms98-a-trans.text) below it; put "
            "swb_ms98_transcriptions there"
        )
    for sides in conversations.values():
        if len(sides) == 1:
            [(side, path)] = sides.items()
            other = f"{path.name[:6]}{'AB'[side == 'A']}{path.name[7:]}"
            losses.add(f"{path}: its other side, {other}, is missing")
    return conversations


def _log_counts(
    audio: Collection[str], conversations: Collection[str], log: Callable[[str], None]
) -> None:
    all_of_them = len(audio) in _PRESSINGS
    expected = "" if all_of_them else " (the whole corpus has 2435 or 2438)"
    log(f"{len(audio)} recordings{expected}")
    for what, names in (
        ("recordings without transcripts", set(audio) - set(conversations)),
        (
            "transcribed conversations without recording",
            set(conversations) - set(audio),
        ),
    ):
        if names:
            log(f"warning: {len(names)} {what}, such as {min(names)}: left out")


def _utterances(
    segments: Sequence[Ms98Segment],
    recording: str,
    channel: str,
    seconds: float,
    acronyms: Mapping[str, str],
    losses: Losses,
) -> Iterator[Utterance]:
    """Yield the utterances of a side whose recording has so many seconds."""
    names: set[str] = set()
    for segment in segments:
        words = plain_words(segment.text, acronyms)
        if not words:
            continue
        start = centiseconds(segment.start) / 100
        end = min(centiseconds(segment.end), int(seconds * 100)) / 100
        if segment.end > seconds + OVERSHOOT or end <= start:
            losses.add(
                f"{segment.where}: ends at {segment.end} s, but "
                f"{recording} has only {seconds:.2f} s"
                if segment.end > seconds
                else f"{segment.where}: has no length"
            )
            continue
        name = utterance_id(f"{recording}-{channel}", segment.start, segment.end)
        if name in names:
            losses.add(f"{segment.where}: a second utterance {name}")
            continue
        names.add(name)
        losses.kept += 1
        yield Utterance(name, recording, channel, start, end, " ".join(words))


def split_dev(
    corpus: SpeechSet,
    segments: int | None = None,
    speakers: Mapping[str, str] | None = None,
    exclude: bool = False,
    log: Callable[[str], None] = print,
) -> tuple[SpeechSet, SpeechSet]:
    """Take whole conversations from the front until they have `segments` utterances.

    No conversation, and so no conversation side, is in both parts. Speakers may be,
    unless they are excluded. Kaldi and ESPnet take exactly the first 4000 segments,
    which may cut a conversation, and let speakers be in both parts.

    Args:
        corpus: All utterances.
        segments: The number to take; None for Kaldi's 4000, or for a tenth of a corpus
            of less than 40000.
        speakers: The PIN of each conversation side, as `read_conv_tab` returns them; a
            side that it lacks counts as a speaker of its own. None if nobody knows.
        exclude: Whether every side of a speaker of `train_dev` is left out of `train`;
            needs `speakers`.
        log: Called with a line that tells how much is left out, or how much is of
            speakers that are in both parts.

    Returns:
        The rest (`train`), and what was taken (`train_dev`).

    Raises:
        InputError: One of the parts would be empty.
    """
    if segments is None:
        segments = min(4000, max(1, len(corpus.utterances) // 10))
    taken: list[Utterance] = []
    rest: list[Utterance] = []
    for _, conversation in groupby(corpus.utterances, key=lambda u: u.recording):
        (taken if len(taken) < segments else rest).extend(conversation)
    if not rest or not taken:
        raise InputError(
            f"{len(corpus.utterances)} utterances can't be split into {segments} for "
            "development and some for training: change --dev_segments"
        )
    if speakers is not None:
        rest = _without_speakers_of(taken, rest, speakers, exclude, log)
    return (
        replace(corpus, name="train", utterances=tuple(rest)),
        replace(corpus, name="train_dev", utterances=tuple(taken)),
    )


def _without_speakers_of(
    taken: Sequence[Utterance],
    rest: Sequence[Utterance],
    speakers: Mapping[str, str],
    exclude: bool,
    log: Callable[[str], None],
) -> list[Utterance]:
    """Return `rest`, without the speakers of `taken` if they are excluded."""
    unknown = {u.recording for u in (*taken, *rest) if u.side not in speakers}
    if unknown:
        log(
            f"warning: {len(unknown)} conversations, such as {min(unknown)}, are not "
            "in conv.tab: each of their sides counts as a speaker of its own"
        )
    heard = {speakers.get(u.side, u.side) for u in taken}
    others = [u for u in rest if speakers.get(u.side, u.side) not in heard]
    theirs = [u for u in rest if speakers.get(u.side, u.side) in heard]
    if exclude and not others:
        raise InputError(
            f"all speakers of the training set are among the {len(heard)} of the "
            "development set: lower --dev_segments, or keep them (--dev_speakers keep)"
        )
    sides = len({u.side for u in theirs})
    less, all_of_it = _hours(theirs), _hours(rest)
    log(
        f"train_dev has {len(heard)} speakers; their other {sides} conversation sides, "
        f"{less:.2f} of {all_of_it:.2f} h, are "
        + (
            f"left out of training, which has {all_of_it - less:.2f} h"
            if exclude
            else "in training, too (--dev_speakers exclude leaves them out)"
        )
    )
    return others if exclude else list(rest)


def _hours(utterances: Iterable[Utterance]) -> float:
    return sum(u.end - u.start for u in utterances) / 3600


def cap_duplicates(corpus: SpeechSet, most: int) -> SpeechSet:
    """Keep the first `most` utterances of each text; the result is `train_nodup`.

    Kaldi's `remove_dup_utts.sh` keeps about as many, drawn from the whole corpus.
    """
    seen: Counter[str] = Counter()
    kept = []
    for utterance in corpus.utterances:
        seen[utterance.text] += 1
        if seen[utterance.text] <= most:
            kept.append(utterance)
    return replace(corpus, name="train_nodup", utterances=tuple(kept))
