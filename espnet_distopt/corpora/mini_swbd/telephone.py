"""Imitates a telephone line: its narrow band, level, echo, noise and mu-law coding."""

import io
import math
from dataclasses import dataclass

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy import signal

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
