"""Cuts the utterances out of audio files, and writes them into an ark."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.corpora.audio.recordings import Recording, open_audio
from espnet_distopt.corpora.audio.speed import change_speed, prefix
from espnet_distopt.corpora.kaldi.arks import Samples, WavArkWriter
from espnet_distopt.corpora.kaldi.directory import Segment
from espnet_distopt.errors import InputError

OVERSHOOT_SECONDS = 0.5
"""How far a segment may reach beyond its recording; what is beyond is cut off."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which utterances are kept: those that have words and are neither short nor long.

    Attributes:
        min_seconds: The shortest duration.
        max_seconds: The longest duration.
        max_lost: How many of the recordings may be left out because they cannot be
            read, in percent.
    """

    min_seconds: float = 0.1
    max_seconds: float = 20.0
    max_lost: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_seconds <= self.max_seconds:
            raise InputError(
                f"expected 0 <= min_seconds <= max_seconds, got {self.min_seconds} and "
                f"{self.max_seconds}"
            )

    def objection(self, seconds: float, text: str) -> str | None:
        """Return why an utterance is dropped, or None if it is kept."""
        if seconds < self.min_seconds:
            return f"shorter than {self.min_seconds} s"
        if seconds > self.max_seconds:
            return f"longer than {self.max_seconds} s"
        return None if text else "without words"


@dataclass(frozen=True)
class Cut:
    """An utterance to cut out of an audio file.

    Attributes:
        utterance: The utterance's id.
        text: Its words.
        channel: `A` or `B`; None for the only channel of the file.
        segment: Its place in the recording; None for all of the recording.
        where: The file and line that lists it, for messages.
    """

    utterance: str
    text: str
    channel: str | None
    segment: Segment | None
    where: str


@dataclass(frozen=True, kw_only=True)
class CutShare:
    """What one process cuts.

    Attributes:
        files: The cuts of each audio file, by the file's location.
        ark: The file to write.
        named: The name of that file once its directory is complete.
        limits: Which utterances to keep; None for all.
        factors: The speeds at which each utterance is written.
        sample_rate: The rate that the audio must have, in Hz.
        may_lose: How many files may be left out because they cannot be read.
    """

    files: Mapping[str, list[Cut]]
    ark: Path
    named: Path
    limits: Limits | None
    factors: tuple[float, ...]
    sample_rate: int
    may_lose: int


@dataclass
class Written:
    """What one or several processes have written.

    Attributes:
        locations: The place of each utterance as `path.ark:offset`.
        samples: The length of each utterance in samples.
        dropped: The number of utterances left out, by reason.
        unreadable: Why files cannot be read, whose utterances are left out.
    """

    locations: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)

    def add(self, other: "Written") -> None:
        """Add what another process has written."""
        self.locations |= other.locations
        self.samples |= other.samples
        self.dropped += other.dropped
        self.unreadable += other.unreadable

    def check_lost(self, most: int) -> None:
        """Check that at most so many files cannot be read.

        Raises:
            InputError: There are more; the message says what is wrong with the first.
        """
        if len(self.unreadable) > most:
            what = self.unreadable[most]
            if most > 0:
                what += (
                    f" (like {most} before it, which may be left out, but no more: "
                    "check the paths, or take them out of the data directory)"
                )
            raise InputError(what)


class _Unreadable(InputError):
    """Raised for a file that cannot be opened or read."""


def cut_share(share: CutShare, progress: Callable[[int], None]) -> Written:
    """Cut a share into its ark, reading each audio file once.

    Args:
        share: What to cut.
        progress: Called after each file with the number of utterances in it.

    Raises:
        InputError: More files than may be left out cannot be read or have another
            sample rate, a segment lies outside its recording, or an utterance has no
            samples.
    """
    written = Written()
    with WavArkWriter(share.ark, named=share.named) as ark:
        for location, cuts in share.files.items():
            try:
                written.add(_cut_file(location, cuts, share, ark))
            except _Unreadable as error:
                written.unreadable.append(str(error))
                written.check_lost(share.may_lose)
            progress(len(cuts) * len(share.factors))
    # The ark may also have utterances of a file that is damaged further behind.
    written.locations = {utt: ark.locations[utt] for utt in written.samples}
    return written


def _cut_file(
    location: str, cuts: list[Cut], share: CutShare, ark: WavArkWriter
) -> Written:
    """Cut a file; of what is returned, the locations are missing."""
    written = Written()
    with ExitStack() as stack:
        with _reading():
            audio = stack.enter_context(open_audio(location, share.sample_rate))
        for cut in cuts:
            samples = _cut(cut, audio.recording(cut.channel), share.sample_rate)
            for factor in share.factors:
                _write(cut, samples, factor, share, ark, written)
    return written


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise _Unreadable(str(error)) from None


def _write(
    cut: Cut,
    samples: Samples,
    factor: float,
    share: CutShare,
    ark: WavArkWriter,
    written: Written,
) -> None:
    seconds = round(len(samples) / factor) / share.sample_rate
    limits = share.limits
    objection = limits.objection(seconds, cut.text) if limits else None
    if objection:
        written.dropped[objection] += 1
        return
    if len(samples) == 0:
        raise InputError(f"{cut.where}: utterance {cut.utterance} has no samples")
    name = prefix(factor) + cut.utterance
    samples = change_speed(samples, factor)
    ark[name] = (share.sample_rate, samples)
    written.samples[name] = len(samples)


def _cut(cut: Cut, recording: Recording, sample_rate: int) -> Samples:
    segment, length = cut.segment, recording.length
    if segment is None:
        with _reading():
            return recording.read(0, length)
    start, stop = round(segment.start * sample_rate), round(segment.end * sample_rate)
    if start >= length or stop > length + OVERSHOOT_SECONDS * sample_rate:
        raise InputError(
            f"{cut.where}: utterance {cut.utterance}: ends at {segment.end} s, but "
            f"recording {segment.recording} is {length / sample_rate} s long"
        )
    with _reading():
        return recording.read(start, min(stop, length))
