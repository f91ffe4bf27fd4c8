"""A set of transcribed utterances on two-channel recordings, before it is written."""

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
        id: starts with the side, as in `sw02001-A_000098-001156`.
        recording: name of the recording, as in `sw02001`.
        channel: A (the first) or B.
        start: seconds.
        end: seconds.
        text: words separated by blanks.
    """

    id: str
    recording: str
    channel: str
    start: float
    end: float
    text: str

    @property
    def side(self) -> str:
        """The conversation side, such as `sw02001-A`; it stands for the speaker."""
        return f"{self.recording}-{self.channel}"


@dataclass(frozen=True)
class SpeechSet:
    """Utterances, and where their recordings are.

    Attributes:
        name: of the set, as in `train_nodup`.
        audio: path of each recording; may hold more than the utterances need.
        utterances: sorted by id.
    """

    name: str
    audio: dict[str, Path]
    utterances: tuple[Utterance, ...]


def utterance_id(side: str, start: float, end: float) -> str:
    """Kaldi's id: the side, then start and end (seconds) in whole centiseconds."""
    return f"{side}_{centiseconds(start):06d}-{centiseconds(end):06d}"


def centiseconds(seconds: float) -> int:
    """Rounded half up, as Kaldi's scripts do; Python's `round` would go to even."""
    return int(100 * seconds + 0.5)


def to_data_dir(speech: SpeechSet) -> DataDir:
    """Describe a set as Kaldi does.

    Its recordings are conversation sides, two of which share a file;
    reco2file_and_channel says which channel each one is.

    Raises:
        InputError: two utterances have the same id.
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
    """A table of the sets; the first one gives the vocabulary, the last is the test.

    Columns: conversations, utterances, words, hours of speech, different words, and
    the share of words that the first set doesn't have (out of vocabulary).
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
