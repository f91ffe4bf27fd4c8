"""Formats a data directory: writes its utterances into arks."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.audio.cutting import (
    Cut,
    CutShare,
    Limits,
    Written,
    cut_share,
)
from espnet_distopt.corpora.audio.speed import prefix
from espnet_distopt.corpora.kaldi.arks import ark_names
from espnet_distopt.corpora.kaldi.directory import DataDir
from espnet_distopt.corpora.kaldi.tables import write_table
from espnet_distopt.corpora.parallel import do_shares
from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import write_text


@dataclass(frozen=True)
class Formatted:
    """How much was written, and what was left out.

    Attributes:
        utterances: The number of utterances that were written.
        seconds: Their duration.
        dropped: The number of utterances that were dropped, by reason.
        unreadable: Why files cannot be read, whose utterances are left out.
    """

    utterances: int
    seconds: float
    dropped: Counter[str]
    unreadable: tuple[str, ...]


def format_data(
    source: Path,
    target: Path,
    *,
    limits: Limits | None,
    sample_rate: int = 8000,
    factors: tuple[float, ...] = (1.0,),
    nj: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Formatted:
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
                ark=new / name,
                named=target / name,
                limits=limits,
                factors=factors,
                sample_rate=sample_rate,
                may_lose=may_lose,
            )
            for part, name in zip(parts, ark_names("wav", len(parts)), strict=True)
        ]
        for each in do_shares(cut_share, shares, len(words) * len(factors), progress):
            written.add(each)
            written.check_lost(may_lose)
        if not written.samples:
            reasons = (f"{count} {why}" for why, count in written.dropped.items())
            raise InputError(f"{source}: no utterance is left: {', '.join(reasons)}")
        _write_tables(data, words, factors, written, new, target)
        # Recipes compare this with their options, which may have changed.
        speeds = " ".join(f"{factor:g}" for factor in factors)
        write_text(new / "rate_and_speeds", f"{sample_rate} {speeds}\n")
    seconds = sum(written.samples.values()) / sample_rate
    unreadable = tuple(written.unreadable)
    return Formatted(len(written.samples), seconds, written.dropped, unreadable)


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
