"""Formats a data directory: cuts its utterances out of audio files, into arks.

Copies of an utterance may be faster or slower, and higher or lower.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soxr  # type: ignore[import-untyped]

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import write_table
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.corpora.audio.recordings import Recording, open_audio
from espnet_distopt.recipes.corpora.kaldi.arks import Samples, WavArkWriter, ark_names
from espnet_distopt.recipes.corpora.kaldi.directory import DataDir, Segment
from espnet_distopt.recipes.corpora.parallel import do_shares

_SLOWEST, _FASTEST = 0.5, 2.0  # beyond, a factor is a mistake, as 90 for 0.9


def parse_factors(text: str) -> tuple[float, ...]:
    """Read a list such as "0.9 1.0 1.1"; 1.0 stands for the original.

    Raises:
        InputError: The list is empty, has something else than numbers from 0.5 to 2,
            or has a number twice.
    """
    try:
        factors = tuple(float(field) for field in text.split())
    except ValueError:
        factors = ()
    if not factors or not all(_SLOWEST <= each <= _FASTEST for each in factors):
        raise InputError(
            f"expected speed factors from {_SLOWEST} to {_FASTEST} separated by "
            f"blanks, as '0.9 1.0 1.1', got {text!r}"
        )
    if len({prefix(each) for each in factors}) < len(factors):
        raise InputError(f"a speed factor comes twice in {text!r}")
    return factors


def prefix(factor: float) -> str:
    """Return what ESPnet puts before the ids of a copy, such as `sp0.9-`."""
    return "" if factor == 1 else f"sp{factor:g}-"


def change_speed(samples: Samples, factor: float) -> Samples:
    """Play samples `factor` times as fast; the result is the same in every run.

    The factor divides the duration and multiplies the pitch of samples (time,).

    Returns:
        The new samples, shape (time / factor,), rounded to the nearest length.
    """
    if factor == 1:
        return samples
    # The samples go through floats, because libsoxr adds noise (dither) to 16 bits.
    played = soxr.resample(samples.astype(np.float32), factor, 1.0, quality="HQ")
    length = round(len(samples) / factor)
    played = np.pad(played[:length], (0, max(0, length - len(played))))
    rounded: Samples = np.clip(np.rint(played), -32768, 32767).astype(np.int16)
    return rounded


OVERSHOOT_SECONDS = 0.5
"""How far a segment may reach beyond its recording; what is beyond is cut off."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which utterances are kept: with words and sound, and neither short nor long.

    Attributes:
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

    The channel is `A`, `B`, or None for the only one; without a segment, the utterance
    is all of the recording. `where` is the file and line that lists it, for messages.
    """

    utterance: str
    text: str
    channel: str | None
    segment: Segment | None
    where: str


@dataclass(frozen=True, kw_only=True)
class CutShare:
    """What one process cuts: the cuts of each audio file, by the file's location.

    `ark` is the file to write, and its name once its directory is complete.
    """

    files: Mapping[str, list[Cut]]
    ark: tuple[Path, Path]
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
        full_scale: How many samples of each utterance have the largest or smallest
            16-bit value, as clipped samples have; utterances without are not there.
        empty: The number of utterances without samples that are kept as a sample of
            silence.
    """

    locations: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    full_scale: Counter[str] = field(default_factory=Counter)
    empty: int = 0

    def add(self, other: "Written") -> None:
        """Add what another process has written."""
        self.locations |= other.locations
        self.samples |= other.samples
        self.dropped += other.dropped
        self.unreadable += other.unreadable
        self.full_scale.update(other.full_scale)
        self.empty += other.empty

    def check_lost(self, most: int) -> None:
        """Raise what is wrong with the first unreadable file beyond so many."""
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


def _cut_share(share: CutShare, progress: Callable[[int], None]) -> Written:
    """Cut a share into its ark, reading each audio file once."""
    written = Written()
    with WavArkWriter(*share.ark) as ark:
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
    if limits and not objection and np.ptp(samples) == 0:
        objection = "silent (all its samples are equal)"
    if objection:
        written.dropped[objection] += 1
        return
    if len(samples) == 0:  # a test set's, which must get a result
        written.empty += 1
        samples = np.zeros(1, np.int16)
    name = prefix(factor) + cut.utterance
    samples = change_speed(samples, factor)
    ark[name] = (share.sample_rate, samples)
    written.samples[name] = len(samples)
    full_scale = int(np.count_nonzero((samples == 32767) | (samples == -32768)))
    if full_scale:
        written.full_scale[name] = full_scale


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


def format_data(
    source: Path,
    target: Path,
    *,
    limits: Limits | None,
    sample_rate: int = 8000,
    factors: tuple[float, ...] = (1.0,),
    nj: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Written:
    """Write a dump directory, which has the utterances of a data directory in arks.

    Args:
        source: The data directory.
        target: The dump directory, which is replaced whole or not at all.
        limits: Which utterances to keep, and how many recordings may be unreadable;
            None to keep all of all.
        sample_rate: The rate that the recordings must have, in Hz.
        factors: The speeds at which each utterance is written. A copy of another speed
            than 1 is called `sp0.9-UTTERANCE`, and its speaker `sp0.9-SPEAKER`.
        nj: The number of processes; each writes an ark.
        progress: Called with the number of utterances done, and of all.

    Raises:
        InputError: The data directory is bad, more audio files than `limits` says
            cannot be read or have another rate, a segment lies outside its recording,
            or no utterance is left.
    """
    if nj < 1:
        raise InputError(f"--nj is {nj}, expected at least 1")
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: must be another directory than the source")
    data = DataDir.read(source)
    _refuse_copies(data, factors, source)
    words = {utt: " ".join(text.split()) for utt, text in data.text.items()}
    written = Written()
    cuts = _cuts(data, words, source)
    may_lose = int(len(cuts) * limits.max_lost / 100) if limits else 0
    with whole_directory(target) as new:
        parts = _split(cuts, nj)
        shares = [
            CutShare(
                files=part,
                ark=(new / name, target / name),
                limits=limits,
                factors=factors,
                sample_rate=sample_rate,
                may_lose=may_lose,
            )
            for part, name in zip(parts, ark_names("wav", len(parts)), strict=True)
        ]
        for each in do_shares(_cut_share, shares, len(words) * len(factors), progress):
            written.add(each)
            written.check_lost(may_lose)
        if not written.samples:
            reasons = (f"{count} {why}" for why, count in written.dropped.items())
            raise InputError(f"{source}: no utterance is left: {', '.join(reasons)}")
        _write_tables(data, words, factors, written, new, target)
        # Recipes compare this with their options, which may have changed.
        speeds = " ".join(f"{factor:g}" for factor in factors)
        write_text(new / "rate_and_speeds", f"{sample_rate} {speeds}\n")
    return written


def _refuse_copies(data: DataDir, factors: tuple[float, ...], source: Path) -> None:
    """Refuse to change the speed of utterances that are copies at another speed."""
    prefixes = tuple(prefix(factor) for factor in factors if factor != 1)
    for number, utt in enumerate(data.text, start=1):
        if prefixes and utt.startswith(prefixes):
            raise InputError(
                f"{source / 'text'}:{number}: {utt} is called like a copy of another "
                "speed: was --speed_factors applied before?"
            )


def _cuts(
    data: DataDir, words: Mapping[str, str], source: Path
) -> dict[str, list[Cut]]:
    """Return the cuts of each audio file, so that each file is read only once."""
    cuts: dict[str, list[tuple[str, Cut]]] = {}
    name = "wav.scp" if data.segments is None else "segments"
    segments = data.segments or dict.fromkeys(data.wav)
    for number, (utt, segment) in enumerate(segments.items(), start=1):
        recording = segment.recording if segment else utt
        channel = data.channels[recording].channel if data.channels else None
        where = f"{source / name}:{number}"
        cut = Cut(utt, words[utt], channel, segment, where)
        cuts.setdefault(data.wav[recording], []).append((recording, cut))
    ordered = sorted(cuts.items(), key=lambda item: item[1][0][0])
    return {location: [cut for _, cut in pairs] for location, pairs in ordered}


def _split(files: Mapping[str, list[Cut]], nj: int) -> list[dict[str, list[Cut]]]:
    """Divide the files into at most `nj` parts of about as many utterances."""
    parts: list[dict[str, list[Cut]]] = [{} for _ in range(nj)]
    before, total = 0, sum(map(len, files.values()))
    for location, cuts in files.items():
        parts[before * nj // total][location] = cuts
        before += len(cuts)
    return [part for part in parts if part]


def _write_tables(
    data: DataDir,
    words: Mapping[str, str],
    factors: tuple[float, ...],
    written: Written,
    new: Path,
    target: Path,
) -> None:
    kept = [
        (prefix(factor), utt)
        for factor in factors
        for utt in words
        if prefix(factor) + utt in written.samples
    ]
    DataDir(
        wav=written.locations,
        text={copy + utt: words[utt] for copy, utt in kept},
        utt2spk={copy + utt: copy + data.utt2spk[utt] for copy, utt in kept},
    ).write_files(new, target)
    write_table(new / "utt2num_samples", written.samples)
