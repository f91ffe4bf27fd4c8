"""Turns an invented dialogue into a two-channel telephone recording.

The line is imitated: its narrow band, level, echo, noise and mu-law coding.
"""

import io
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy import signal

from espnet_distopt.recipes.corpora.ldc.ms98 import plain_words
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import (
    ACRONYMS,
    ALL,
    Side,
    Turn,
    Variety,
    invent_dialogue,
)
from espnet_distopt.recipes.corpora.mini_swbd.synthesis import (
    SPOKEN,
    Speaker,
    Synthesizer,
    Voice,
)

Samples = NDArray[np.float32]

SAMPLE_RATE = 8000
"""The sample rate of telephone speech in Hz."""


@dataclass(frozen=True, kw_only=True)
class TelephoneLine:
    """One side of a telephone connection.

    Attributes:
        level_db: The RMS of the speech while somebody speaks, in dB relative to full
            scale.
        snr_db: How far the speech is above the line's noise, in dB.
        low_hz: The lower edge of the pass band.
        high_hz: The upper edge of the pass band.
        echo_db: The level of the echo relative to the speech; None for no echo.
        echo_seconds: The delay of the echo.
        clip: The amplitude at which the line distorts; full scale is 1.
    """

    level_db: float = -26.0
    snr_db: float = 35.0
    low_hz: float = 300.0
    high_hz: float = 3400.0
    echo_db: float | None = None
    echo_seconds: float = 0.03
    clip: float = 1.0


def good_line(rng: np.random.Generator) -> TelephoneLine:
    """Draw a line as of Switchboard calls, which differ in level, noise and band."""
    return TelephoneLine(
        level_db=rng.uniform(-32, -23),
        snr_db=rng.uniform(24, 40),
        low_hz=rng.uniform(280, 350),
        high_hz=rng.uniform(3200, 3450),
    )


def bad_line(rng: np.random.Generator) -> TelephoneLine:
    """Draw a long-distance line: weaker, noisier, narrower, with echo and clipping."""
    return TelephoneLine(
        level_db=rng.uniform(-33, -23),
        snr_db=rng.uniform(16, 23),
        low_hz=rng.uniform(300, 400),
        high_hz=rng.uniform(3000, 3300),
        echo_db=rng.uniform(-28, -18),
        echo_seconds=rng.uniform(0.02, 0.08),
        clip=rng.uniform(0.2, 0.5),
    )


def to_telephone_rate(samples: Samples, sample_rate: int) -> Samples:
    """Resample audio, shape (time,), from `sample_rate` to 8 kHz."""
    common = math.gcd(sample_rate, SAMPLE_RATE)
    up, down = SAMPLE_RATE // common, sample_rate // common
    return np.asarray(signal.resample_poly(samples, up, down), np.float32)


def transmit(speech: Samples, line: TelephoneLine, rng: np.random.Generator) -> Samples:
    """Send the speech of one side through a line.

    Args:
        speech: The speech, shape (time,), 8 kHz; zero where nobody speaks.
        line: The properties of the line.
        rng: Makes the noise.

    Returns:
        What is received, shape (time,), 8 kHz, in values that 8-bit mu-law can express.
    """
    received = set_level(band_pass(speech, line), line.level_db, active=speech != 0)
    if line.echo_db is not None:
        received = add_echo(received, line.echo_db, line.echo_seconds)
    received = np.clip(received, -line.clip, line.clip)
    noise = band_pass(rng.standard_normal(len(speech), np.float32), line)
    received = received + set_level(noise, line.level_db - line.snr_db)
    return mu_law(received)


def band_pass(samples: Samples, line: TelephoneLine) -> Samples:
    """Remove frequencies outside the line's band, without delay (FIR, 201 taps)."""
    edges = [line.low_hz, line.high_hz]
    taps = signal.firwin(201, edges, pass_zero=False, fs=SAMPLE_RATE)
    taps = taps.astype(np.float32)
    return np.asarray(signal.oaconvolve(samples, taps, mode="same"), np.float32)


def set_level(
    samples: Samples, level_db: float, active: NDArray[np.bool_] | None = None
) -> Samples:
    """Scale audio so that the `active` samples have an RMS of `level_db`.

    Silence stays silence.

    Args:
        samples: The audio, shape (time,).
        level_db: The level in dB relative to full scale.
        active: The samples that count, shape (time,); None for all.
    """
    measured = samples if active is None else samples[active]
    power = (
        float(np.mean(np.square(measured, dtype=np.float64))) if measured.size else 0
    )
    if power == 0:
        return samples
    return samples * np.float32(10 ** (level_db / 20) / power**0.5)


def add_echo(samples: Samples, echo_db: float, seconds: float) -> Samples:
    """Add one copy, delayed by `seconds`, at `echo_db` relative to the original."""
    delay = round(seconds * SAMPLE_RATE)
    echo = np.zeros_like(samples)
    echo[delay:] = samples[: len(samples) - delay]
    return samples + echo * np.float32(10 ** (echo_db / 20))


def mu_law(samples: Samples) -> Samples:
    """Code audio in 8-bit mu-law (G.711) and back; values beyond 1 are clipped."""
    coded = io.BytesIO()
    clipped = np.clip(samples, -1, 1)
    soundfile.write(coded, clipped, SAMPLE_RATE, format="AU", subtype="ULAW")
    coded.seek(0)
    return np.asarray(soundfile.read(coded, dtype="float32")[0])


def laughter(rng: np.random.Generator) -> Samples:
    """Return a breathy "ha ha ha" of 0.4 to 0.9 s, shape (time,), 8 kHz."""
    bursts = int(rng.integers(3, 7))
    burst = np.hanning(round(0.14 * SAMPLE_RATE))
    envelope = np.concatenate([burst * 0.85**k for k in range(bursts)])
    time = np.arange(len(envelope)) / SAMPLE_RATE
    voiced = np.sign(np.sin(2 * np.pi * rng.uniform(150, 350) * time))
    breath = rng.standard_normal(len(envelope))
    return (0.1 * envelope * (0.5 * voiced + 0.5 * breath)).astype(np.float32)


def bump(rng: np.random.Generator) -> Samples:
    """Return a short noise of 0.1 to 0.3 s, shape (time,), 8 kHz."""
    length = round(rng.uniform(0.1, 0.3) * SAMPLE_RATE)
    decay = np.exp(-np.arange(length) / (0.04 * SAMPLE_RATE))
    return (0.2 * decay * rng.standard_normal(length)).astype(np.float32)


# The least and the most seconds of silence that a transcriber leaves around speech.
_MARGIN = (0.03, 0.25)
_LEAD = 1.0  # seconds of silence at both ends of a recording


@dataclass(frozen=True)
class TimedTurn:
    """An utterance: its side, start and end (seconds), and its text with MS98 marks."""

    side: Side
    start: float
    end: float
    text: str


@dataclass(frozen=True, eq=False)
class Conversation:
    """A recorded call.

    Attributes:
        samples: The audio, shape (time, 2), 8 kHz; side A is the first channel.
        turns: The utterances in the order of their starts. Those of one side never
            overlap.
    """

    samples: Samples
    turns: list[TimedTurn]

    @property
    def seconds(self) -> float:
        """Return the length of the recording in seconds."""
        return len(self.samples) / SAMPLE_RATE


def record(
    speakers: tuple[Speaker, Speaker],
    turns: int,
    line: Callable[[np.random.Generator], TelephoneLine],
    seed: str,
    variety: Variety = ALL,
) -> Conversation:
    """Let two speakers talk on the telephone.

    Args:
        speakers: The speakers on side A and on side B.
        turns: The number of utterances.
        line: Draws the properties of a side's line.
        seed: Decides everything else; equal seeds give equal bits.
        variety: How much of the grammar they use.
    """
    choices = random.Random(seed)
    noise = np.random.default_rng(choices.getrandbits(64))
    names = speakers[0].name, speakers[1].name
    dialogue = invent_dialogue(names, turns, choices, variety)
    voices = {"A": speakers[0].voice, "B": speakers[1].voice}
    with Synthesizer(choices.getrandbits(31)) as synthesizer:
        spoken = [
            speak(turn.text, voices[turn.side], synthesizer, noise) for turn in dialogue
        ]
    timed = arrange(dialogue, [len(samples) / SAMPLE_RATE for samples in spoken])
    length = round((max(turn.end for turn in timed) + _LEAD) * SAMPLE_RATE)
    sides = {"A": np.zeros(length, np.float32), "B": np.zeros(length, np.float32)}
    for turn, samples in zip(timed, spoken, strict=True):
        start = round(turn.start * SAMPLE_RATE)
        sides[turn.side][start : start + len(samples)] = samples
    received = [transmit(sides[side], line(noise), noise) for side in ("A", "B")]
    return Conversation(np.stack(received, axis=1), timed)


def arrange(dialogue: Sequence[Turn], seconds: Sequence[float]) -> list[TimedTurn]:
    """Give each turn, whose length is in `seconds`, its place in the conversation."""
    timed = []
    latest_end = _LEAD
    side_end = {"A": 0.0, "B": 0.0}
    for turn, length in zip(dialogue, seconds, strict=True):
        start = max(latest_end + turn.gap, side_end[turn.side])
        # It is rounded to a whole sample, so that the transcript is exact.
        start = round(start * SAMPLE_RATE) / SAMPLE_RATE
        timed.append(TimedTurn(turn.side, start, start + length, turn.text))
        side_end[turn.side] = start + length
        latest_end = max(latest_end, start + length)
    return sorted(timed, key=lambda turn: turn.start)


def speak(
    text: str, voice: Voice, synthesizer: Synthesizer, noise: np.random.Generator
) -> Samples:
    """Return the audio of an MS98 text with its laughs and noises, (time,), 8 kHz."""
    parts = [_silence(noise)]
    words: list[str] = []
    for token in [*text.split(), None]:
        if token is not None and (word := " ".join(plain_words(token, ACRONYMS))):
            words.append(SPOKEN.get(word, word))
            continue
        if words:
            samples = synthesizer.say(" ".join(words), voice)
            parts.append(to_telephone_rate(samples, synthesizer.sample_rate))
            words.clear()
        if token is not None:
            parts.append(_sound(token, noise))
    return np.concatenate([*parts, _silence(noise)])


def _silence(noise: np.random.Generator) -> Samples:
    """Return the silence that a transcriber leaves around speech."""
    return np.zeros(round(noise.uniform(*_MARGIN) * SAMPLE_RATE), np.float32)


def _sound(mark: str, noise: np.random.Generator) -> NDArray[np.float32]:
    return laughter(noise) if mark == "[laughter]" else bump(noise)
