"""Log-mel features: what digital silence is, and what a short utterance becomes."""

import numpy as np
import pytest

from espnet_distopt.recipes.corpora.audio.log_mel import (
    DIMENSIONS,
    MELS,
    log_mel,
    normalized,
)

RATE = 8000


def noise(level: float, seconds: float) -> np.ndarray:
    """Return noise of a level, in units of a sample of 16 bits."""
    drawn = np.random.default_rng(0).standard_normal(round(seconds * RATE))
    return np.rint(level * drawn).astype(np.int16)


def test_digital_silence_is_no_quieter_than_noise_of_a_bit() -> None:
    silence = log_mel(np.zeros(RATE, np.int16), RATE)
    assert silence.shape == (100, DIMENSIONS)
    assert not silence.any()
    heard = log_mel(noise(1, 1.0), RATE)[:, :MELS].mean()
    assert 0 < heard < 6


def test_digital_silence_hardly_changes_what_speech_looks_like() -> None:
    speech = log_mel(noise(1000, 9.0), RATE)
    quiet = {"zeros": np.zeros(RATE, np.int16), "noise": noise(1, 1.0)}
    spread = {
        name: normalized({"speech": speech, name: log_mel(samples, RATE)})["speech"]
        for name, samples in quiet.items()
    }
    ratio = spread["zeros"].std(0) / spread["noise"].std(0)
    assert ratio.min() > 0.6


@pytest.mark.parametrize("time", [0, 1, 199])
def test_an_utterance_shorter_than_a_window_is_followed_by_zeros(time: int) -> None:
    samples = noise(1000, 1.0)[:time]
    padded = np.pad(samples, (0, 200 - time))
    np.testing.assert_array_equal(log_mel(samples, RATE), log_mel(padded, RATE))
    assert log_mel(samples, RATE).shape == (3, DIMENSIONS)
