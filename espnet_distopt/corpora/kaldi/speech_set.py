"""A set of transcribed utterances on two-channel recordings, held in memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from espnet_distopt.corpora.kaldi.directory import DataDir, FileChannel, Segment
from espnet_distopt.errors import InputError


@dataclass(frozen=True)
class Utterance:
    """A stretch of one channel and its words.

    Attributes:
        id: The utterance's id, which starts with its side, as in
            `sw02001-A_000098-001156`.
        recording: The name of the recording, as in `sw02001`.
        channel: A (the first) or B.
        start: Seconds from the recording's start.
        end: Seconds from the recording's start.
        text: Words separated by blanks.
    """

    id: str
    recording: str
    channel: str
    start: float
    end: float
    text: str

    @property
    def side(self) -> str:
        """Return the conversation side, as `sw02001-A`; it stands for the speaker."""
        return f"{self.recording}-{self.channel}"


@dataclass(frozen=True)
class SpeechSet:
    """A set's utterances, and where their recordings are.

    Attributes:
        name: The set's name, as in `train_nodup`.
        audio: The path of each recording; may hold more than the utterances need.
        utterances: The utterances, sorted by id.
    """

    name: str
    audio: dict[str, Path]
    utterances: tuple[Utterance, ...]


def utterance_id(side: str, start: float, end: float) -> str:
    """Return Kaldi's id of a segment: the side, then start and end in centiseconds."""
    return f"{side}_{centiseconds(start):06d}-{centiseconds(end):06d}"


def centiseconds(seconds: float) -> int:
    """Round half up, as Kaldi's scripts do; Python's `round` would round to even."""
    return int(100 * seconds + 0.5)


def to_data_dir(speech: SpeechSet) -> DataDir:
    """Describe a set as a Kaldi data directory.

    Each recording of the directory is a conversation side. Two sides share a file, and
    `reco2file_and_channel` says which channel each of them is.

    Raises:
        InputError: Two utterances have the same id.
    """
    for before, after in pairwise(speech.utterances):
        if before.id == after.id:
            raise InputError(f"{speech.name}: two utterances are called {after.id}")
    sides = {u.side: u for u in speech.utterances}
    return DataDir(
        wav={side: str(speech.audio[u.recording]) for side, u in sides.items()},
        text={u.id: u.text for u in speech.utterances},
        utt2spk={u.id: u.side for u in speech.utterances},
        segments={u.id: Segment(u.side, u.start, u.end) for u in speech.utterances},
        channels={
            side: FileChannel(u.recording, u.channel) for side, u in sides.items()
        },
    )


def summarize(sets: Sequence[SpeechSet]) -> str:
    """Return a table with a row for each set; the first set gives the vocabulary.

    The columns are conversations, utterances, words, hours of speech, different words,
    and the share of words that the first set doesn't have (out of vocabulary).
    """
    known = {
        word for utterance in sets[0].utterances for word in utterance.text.split()
    }
    lines = [
        f"{'set':<16} {'conv.':>6} {'utts':>7} {'words':>8} {'hours':>7} "
        f"{'vocab.':>7} {'OOV %':>6}"
    ]
    lines += [_row(each.name, each.utterances, known) for each in sets]
    return "\n".join(lines)


def _row(name: str, utterances: Iterable[Utterance], known: set[str]) -> str:
    utterances = list(utterances)
    words = [word for utterance in utterances for word in utterance.text.split()]
    conversations = len({utterance.recording for utterance in utterances})
    hours = sum(utterance.end - utterance.start for utterance in utterances) / 3600
    unknown = 100 * sum(word not in known for word in words) / max(len(words), 1)
    return (
        f"{name:<16} {conversations:>6} {len(utterances):>7} {len(words):>8} "
        f"{hours:>7.3f} {len(set(words)):>7} {unknown:>6.2f}"
    )
