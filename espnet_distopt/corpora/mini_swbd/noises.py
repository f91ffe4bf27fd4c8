"""Makes sounds that are not speech: a laugh, and a bump of the receiver."""

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.mini_swbd.telephone import SAMPLE_RATE


def laughter(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a breathy "ha ha ha" of 0.4 to 0.9 s, shape (time,), 8 kHz."""
    bursts = int(rng.integers(3, 7))
    burst = np.hanning(round(0.14 * SAMPLE_RATE))
    envelope = np.concatenate([burst * 0.85**k for k in range(bursts)])
    time = np.arange(len(envelope)) / SAMPLE_RATE
    voiced = np.sign(np.sin(2 * np.pi * rng.uniform(150, 350) * time))
    breath = rng.standard_normal(len(envelope))
    return (0.1 * envelope * (0.5 * voiced + 0.5 * breath)).astype(np.float32)


def bump(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a short noise of 0.1 to 0.3 s, shape (time,), 8 kHz."""
    length = round(rng.uniform(0.1, 0.3) * SAMPLE_RATE)
    decay = np.exp(-np.arange(length) / (0.04 * SAMPLE_RATE))
    return (0.2 * decay * rng.standard_normal(length)).astype(np.float32)
