"""Switchboard-1 (LDC97S62) with its MS98 transcripts: reading and splitting."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from espnet_distopt.data.discs import call_seconds, find_files, name_recordings
from espnet_distopt.data.ms98 import plain_words, read_transcript
from espnet_distopt.data.speech_set import (
    SpeechSet,
    Utterance,
    centiseconds,
    utterance_id,
)
from espnet_distopt.errors import InputError

# Transcribers' ends may pass the recording's by this much; the segment is then cut.
_OVERSHOOT = 0.5


def read_swb1(root: Path, log: Callable[[str], None] = print) -> SpeechSet:
    """Read all utterances that have words.

    Args:
        root: holds the recordings `sw0NNNN.sph` and the transcripts
            `swNNNN{A,B}-ms98-a-trans.text`, at any depth.
        log: told how many recordings there are, and how many are missing.

    Returns:
        The whole corpus, sorted by utterance id.

    Raises:
        InputError: nothing found, a recording without transcript, a bad line, a
            segment outside its recording; the message names file and line.
    """
    audio = name_recordings(find_files(root, r"sw0\d{4}\.sph"))
    if not audio:
        raise InputError(f"{root}: no recordings (sw0NNNN.sph) below it")
    transcripts = {
        path.name[:7]: path
        for path in find_files(root, r"sw\d{4}[AB]-ms98-a-trans\.text")
    }
    if not transcripts:
        raise InputError(
            f"{root}: no transcripts (swNNNNA-ms98-a-trans.text) below it; put "
            "swb_ms98_transcriptions there"
        )
    lacking = {name[2:6] for name in transcripts} - {name[3:] for name in audio}
    log(f"{len(audio)} recordings; transcripts without recording: {len(lacking)}")
    utterances: list[Utterance] = []
    for recording, path in audio.items():
        seconds = call_seconds(path)
        for channel in ("A", "B"):
            transcript = transcripts.get(f"sw{recording[3:]}{channel}")
            if transcript is None:
                raise InputError(f"{path}: no transcript of its side {channel}")
            utterances += _read_side(transcript, recording, channel, seconds)
    return SpeechSet("swb1", audio, tuple(sorted(utterances, key=lambda u: u.id)))


def _read_side(
    transcript: Path, recording: str, channel: str, seconds: float
) -> list[Utterance]:
    utterances = []
    for number, segment in enumerate(read_transcript(transcript), start=1):
        if segment.end > seconds + _OVERSHOOT:
            raise InputError(
                f"{transcript}:{number}: ends at {segment.end} s, but {recording} has "
                f"only {seconds:.2f} s"
            )
        start = centiseconds(segment.start) / 100
        end = min(centiseconds(segment.end), int(seconds * 100)) / 100
        words = plain_words(segment.text)
        if words and end > start:
            name = utterance_id(f"{recording}-{channel}", segment.start, segment.end)
            utterances.append(
                Utterance(name, recording, channel, start, end, " ".join(words))
            )
    return utterances


def split_dev(
    corpus: SpeechSet, segments: int | None = None
) -> tuple[SpeechSet, SpeechSet]:
    """Take whole conversations from the front until there are `segments` utterances.

    No conversation, and so no conversation side, is in both parts.

    Args:
        corpus: all utterances.
        segments: by default Kaldi's 4000, or a tenth of a corpus of less than 40000.

    Returns:
        The rest (`train`), and what was taken (`train_dev`).

    Raises:
        InputError: one of the parts would be empty.
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
    return (
        replace(corpus, name="train", utterances=tuple(rest)),
        replace(corpus, name="train_dev", utterances=tuple(taken)),
    )


def cap_duplicates(corpus: SpeechSet, most: int) -> SpeechSet:
    """Keep the first `most` utterances of each text; the result is `train_nodup`."""
    seen: Counter[str] = Counter()
    kept = []
    for utterance in corpus.utterances:
        seen[utterance.text] += 1
        if seen[utterance.text] <= most:
            kept.append(utterance)
    return replace(corpus, name="train_nodup", utterances=tuple(kept))
