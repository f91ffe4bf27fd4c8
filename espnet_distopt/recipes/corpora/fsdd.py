"""Digit strings from the Free Spoken Digit Dataset: real speech, 8 kHz, one word list.

The dataset (Jakobovski, CC BY-SA 4.0) holds single digits: 50 recordings of each digit
by each of six speakers. This module joins them into strings of 3 to 7 digits of one
speaker, with short gaps of low noise, so that a recogniser has something to align. The
official test split (recordings 0-4) and one whole speaker stay out of training.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.audio.recordings import open_recording
from espnet_distopt.recipes.corpora.kaldi.arks import Samples, WavArkWriter
from espnet_distopt.recipes.corpora.kaldi.directory import DataDir

URL = "https://github.com/Jakobovski/free-spoken-digit-dataset"
SAMPLE_RATE = 8000
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
UNSEEN_SPEAKER = "theo"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

LENGTHS = (3, 7)
"""The fewest and the most digits of a string."""
GAP_SECONDS = (0.05, 0.25)
"""The shortest and the longest gap, which is also put before and after a string."""
GAP_NOISE_RMS = 5.0
"""The level of the gaps, in 16-bit units: about 76 dB below full scale."""
GAIN_DB = 3.0
"""The largest change of a digit's level, up or down, in decibels."""

_NAME = re.compile(r"([0-9])_([a-z]+)_([0-9]+)\.wav")


@dataclass(frozen=True)
class Take:
    """One recording: its digit, its speaker, and its number among the 50."""

    digit: int
    speaker: str
    index: int

    @property
    def name(self) -> str:
        """Return the name of the recording's file in the dataset."""
        return f"{self.digit}_{self.speaker}_{self.index}.wav"


@dataclass(frozen=True, kw_only=True)
class DigitSet:
    """A set to make.

    Attributes:
        indices: The numbers of the recordings that may be used.
        unseen: Whether it is spoken by the unseen speaker, or else by the others.
    """

    name: str
    strings: int
    indices: range
    unseen: bool = False


SETS = (
    DigitSet(name="train", strings=4000, indices=range(10, 50)),
    DigitSet(name="dev", strings=300, indices=range(5, 10)),
    DigitSet(name="test_known", strings=300, indices=range(5)),
    DigitSet(name="test_unseen", strings=200, indices=range(50), unseen=True),
)


@dataclass(frozen=True)
class Summary:
    """What a set holds: its numbers of strings and words, and its hours of audio."""

    name: str
    strings: int
    words: int
    hours: float


def prepare(
    fsdd: Path, out: Path, *, seed: int = 0, sets: Sequence[DigitSet] = SETS
) -> list[Summary]:
    """Write a data directory `out/NAME` with an ark for each set, or none of them.

    The result depends on nothing but the recordings and the arguments.

    The copy of the dataset has the folder `recordings`. The seed decides strings, gaps,
    gains and noise.

    Returns:
        A summary of each set.

    Raises:
        InputError: The copy is missing or incomplete, or a recording cannot be read,
            has another sample rate, or is not named as the dataset names them.
    """
    decks = [_takes(digits) for digits in sets]
    wanted = {take for deck in decks for takes in deck.values() for take in takes}
    speech = read_recordings(fsdd, wanted)
    with ExitStack() as whole:
        return [
            _write(digits, deck, speech, out / digits.name, seed, whole)
            for digits, deck in zip(sets, decks, strict=True)
        ]


def read_recordings(fsdd: Path, wanted: Iterable[Take]) -> dict[Take, Samples]:
    """Read the wanted recordings; the copy may hold others, also by other speakers.

    Raises:
        InputError: The copy is missing or incomplete, or a recording cannot be read,
            has another sample rate, or is not named as the dataset names them.
    """
    folder = fsdd / "recordings"
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such directory: set FSDD=/path/to/free-spoken-digit-dataset"
            f", or unset FSDD to let the recipe clone {URL}"
        )
    present = {_parse_name(path) for path in sorted(folder.glob("*.wav"))}
    if not present:
        raise InputError(f"{folder}: no recordings (*.wav): is the copy complete?")
    speakers = {take.speaker for take in present}
    ordered = sorted(wanted, key=lambda take: (take.speaker, take.digit, take.index))
    for take in ordered:
        if take.speaker not in speakers:
            raise InputError(
                f"{folder}: no recordings of speaker {take.speaker}: "
                "is the copy complete?"
            )
        if take not in present:
            raise InputError(f"{folder / take.name} is missing: is the copy complete?")
    return {take: _read(folder / take.name) for take in ordered}


def deal(takes: Sequence[Take], rng: np.random.Generator) -> Iterator[Take]:
    """Deal recordings without end, as from a deck that is shuffled when it is used up.

    So no recording is ever dealt more than once more often than another.
    """
    while True:
        for index in rng.permutation(len(takes)):
            yield takes[index]


def join(digits: Sequence[Samples], rng: np.random.Generator) -> Samples:
    """Join digits, each of shape (time,), at random levels with gaps around them."""
    parts: list[NDArray[np.floating]] = [_gap(rng)]
    for digit in digits:
        gain = 10 ** (rng.uniform(-GAIN_DB, GAIN_DB) / 20)
        parts += [digit * gain, _gap(rng)]
    joined = np.rint(np.concatenate(parts))
    return np.clip(joined, -32768, 32767).astype(np.int16)


def _gap(rng: np.random.Generator) -> NDArray[np.float64]:
    length = round(rng.uniform(*GAP_SECONDS) * SAMPLE_RATE)
    return rng.normal(0, GAP_NOISE_RMS, length)


def _takes(digits: DigitSet) -> dict[str, list[Take]]:
    """Return the recordings that a set uses, by speaker."""
    speakers = [s for s in SPEAKERS if (s == UNSEEN_SPEAKER) == digits.unseen]
    return {
        speaker: [
            Take(digit, speaker, index)
            for digit, index in product(range(10), digits.indices)
        ]
        for speaker in speakers
    }


def _write(
    digits: DigitSet,
    deck: Mapping[str, Sequence[Take]],
    speech: Mapping[Take, Samples],
    path: Path,
    seed: int,
    whole: ExitStack,
) -> Summary:
    # The name is part of the seed, so that a set does not depend on the other sets.
    rng = np.random.default_rng([seed, *digits.name.encode()])
    dealers = {speaker: deal(takes, rng) for speaker, takes in deck.items()}
    speakers = list(dealers)
    text: dict[str, str] = {}
    speaker_of: dict[str, str] = {}
    samples = 0
    new = whole.enter_context(whole_directory(path))
    with WavArkWriter(new / "wav.ark", named=path / "wav.ark") as ark:
        for number in range(digits.strings):
            speaker = speakers[number % len(speakers)]
            length = int(rng.integers(*LENGTHS, endpoint=True))
            takes = list(islice(dealers[speaker], length))
            utt = f"{speaker}-{digits.name}-{number:05d}"
            wav = join([speech[take] for take in takes], rng)
            ark[utt] = (SAMPLE_RATE, wav)
            text[utt] = " ".join(WORDS[take.digit] for take in takes)
            speaker_of[utt] = speaker
            samples += len(wav)
    data = DataDir(wav=ark.locations, text=text, utt2spk=speaker_of)
    data.write_files(new, path)
    words = sum(len(string.split()) for string in text.values())
    return Summary(digits.name, len(text), words, samples / SAMPLE_RATE / 3600)


def _parse_name(path: Path) -> Take:
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise InputError(f"{path}: expected a name as 7_jackson_32.wav")
    return Take(int(found[1]), found[2], int(found[3]))


def _read(path: Path) -> Samples:
    with open_recording(str(path), SAMPLE_RATE) as recording:
        if recording.length == 0:
            raise InputError(f"{path}: has no samples")
        return recording.read(0, recording.length)
