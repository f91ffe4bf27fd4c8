"""Cutting: from audio files to the utterances in them, written into an ark."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.corpora.audio.recordings import Recording, open_audio
from espnet_distopt.corpora.audio.speed import change_speed, prefix
from espnet_distopt.corpora.kaldi.arks import Samples, WavArkWriter
from espnet_distopt.corpora.kaldi.directory import Segment
from espnet_distopt.errors import InputError

OVERSHOOT_SECONDS = 0.5
"""How far a segment may reach beyond its recording; the rest is cut off."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which utterances are kept: those with words, of a duration in seconds."""

    min_seconds: float = 0.1
    max_seconds: float = 20.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_seconds <= self.max_seconds:
            raise InputError(
                f"expected 0 <= min_seconds <= max_seconds, got {self.min_seconds} and "
                f"{self.max_seconds}"
            )

    def objection(self, seconds: float, text: str) -> str | None:
        """Why an utterance is dropped, or None."""
        if seconds < self.min_seconds:
            return f"shorter than {self.min_seconds} s"
        if seconds > self.max_seconds:
            return f"longer than {self.max_seconds} s"
        return None if text else "without words"


@dataclass(frozen=True)
class Cut:
    """An utterance to cut out of an audio file.

    Attributes:
        utterance: its id.
        text: its words.
        channel: `A`, `B`, or None: the file's only one.
        segment: its place, or None: all of the recording.
        where: file and line that tells so, for messages.
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
        files: the cuts of each audio file, by its location.
        ark: file to write.
        named: its name once the directory is complete.
        limits: which utterances to keep, or None for all.
        factors: speeds at which each utterance is written.
        sample_rate: that the audio must have, in Hz.
    """

    files: Mapping[str, list[Cut]]
    ark: Path
    named: Path
    limits: Limits | None
    factors: tuple[float, ...]
    sample_rate: int


@dataclass
class Written:
    """What came of a share.

    Attributes:
        locations: where each utterance lies, as a `wav.scp` tells it.
        samples: length of each utterance.
        dropped: utterances left out, by reason.
    """

    locations: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Written") -> None:
        """Add what came of another share."""
        self.locations |= other.locations
        self.samples |= other.samples
        self.dropped += other.dropped


def cut_share(share: CutShare, progress: Callable[[int], None]) -> Written:
    """Cut a share into its ark, reading each audio file once.

    Args:
        share: what to cut.
        progress: is told after each file how many utterances it gave or dropped.

    Raises:
        InputError: audio that is unreadable or of another rate, a segment outside its
            recording, or an utterance without samples.
    """
    written = Written()
    with WavArkWriter(share.ark, named=share.named) as ark:
        for location, cuts in share.files.items():
            with open_audio(location, share.sample_rate) as audio:
                for cut in cuts:
                    recording = audio.recording(cut.channel)
                    samples = _cut(cut, recording, share.sample_rate)
                    for factor in share.factors:
                        _write(cut, samples, factor, share, ark, written)
            progress(len(cuts) * len(share.factors))
    written.locations = ark.locations
    return written


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
        return recording.read(0, length)
    start, stop = round(segment.start * sample_rate), round(segment.end * sample_rate)
    if start >= length or stop > length + OVERSHOOT_SECONDS * sample_rate:
        raise InputError(
            f"{cut.where}: utterance {cut.utterance}: ends at {segment.end} s, but "
            f"recording {segment.recording} is {length / sample_rate} s long"
        )
    return recording.read(start, min(stop, length))
