"""The module draws transformed recordings: other gain, speed, place in time, noise."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from convergence.recordings import FRAMES, MELS, Recordings
from convergence.stream import Samples


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The ranges of the transformations.

    Attributes:
        gain: the largest change of a digit's level, in dB, up or down.
        speed: the largest logarithm of the factor by which a digit is faster or slower.
        shift: the most frames by which a single digit is early or late.
        noise: the standard deviation of the noise on a feature, relative to that of the
            feature over the recordings for training.
    """

    gain: float = 10.0
    speed: float = 0.25
    shift: float = 1.5
    noise: float = 0.7


class Transformed:
    """Recordings from which transformed samples are drawn.

    Args:
        recordings: the recordings.
        training: the recordings for training, by which features are normalized: each
            log-mel has mean 0 and standard deviation 1 over their frames.
        ranges: the ranges of the transformations.
    """

    def __init__(
        self, recordings: Recordings, training: Recordings, ranges: Ranges
    ) -> None:
        frames = training.log_mels.flatten(0, 1)
        self._scale = frames.std(0)
        self._log_mels = (recordings.log_mels - frames.mean(0)) / self._scale
        self._digits = recordings.digits
        self._ranges = ranges

    def digits(self, rng: np.random.Generator, count: int) -> Samples:
        """Draw single digits.

        Returns:
            The features (count, FRAMES, MELS) and the digits (count,).
        """
        ranges = self._ranges
        chosen = torch.from_numpy(rng.integers(len(self._digits), size=(count, 1)))
        middle = (FRAMES - 1) / 2
        speed = _uniform(rng, ranges.speed, (count, 1)).exp()
        shift = _uniform(rng, ranges.shift, (count, 1))
        places = (torch.arange(FRAMES) - middle) * speed + middle + shift
        gain = _uniform(rng, ranges.gain, (count, 1))
        x = self._frames(rng, chosen.expand(count, FRAMES), places, gain)
        return x, self._digits[chosen[:, 0]]

    def strings(
        self, rng: np.random.Generator, count: int, length: int, frames: int
    ) -> Samples:
        """Draw strings of digits, which fill their frames without pauses.

        Args:
            rng: the generator of the random numbers.
            count: the number of strings.
            length: the number of digits of a string.
            frames: the number of frames of a string. The digits share them by random
                speeds.

        Returns:
            The features (count, frames, MELS), the digit of each frame (count, frames)
            and the digits of each string (count, length).
        """
        ranges = self._ranges
        chosen = torch.from_numpy(rng.integers(len(self._digits), size=(count, length)))
        speeds = _uniform(rng, ranges.speed, (count, length)).exp()
        shares = frames * speeds / speeds.sum(1, keepdim=True)
        ends = shares.cumsum(1)
        times = (torch.arange(frames) + 0.5).expand(count, frames).contiguous()
        which = torch.searchsorted(ends[:, :-1].contiguous(), times, right=True)
        begins = (ends - shares).gather(1, which)
        places = (times - begins) / shares.gather(1, which) * FRAMES - 0.5
        gains = _uniform(rng, ranges.gain, (count, length)).gather(1, which)
        taken = chosen.gather(1, which)
        x = self._frames(rng, taken, places, gains)
        return x, self._digits[taken], self._digits[chosen]

    def _frames(
        self, rng: np.random.Generator, chosen: Tensor, places: Tensor, gain: Tensor
    ) -> Tensor:
        """Return frames (n, f, MELS), each between two frames of a recording.

        Args:
            rng: the generator of the noise.
            chosen: the recording of each frame, (n, f).
            places: the time in the recording, (n, f), in frames; the first and the last
                frame also stand for the times before and after them.
            gain: the change of level in dB, (n, f) or (n, 1).
        """
        low = places.floor().clamp(0, FRAMES - 2)
        part = (places - low).clamp(0, 1)[..., None]
        first = low.long()
        x = torch.lerp(
            self._log_mels[chosen, first], self._log_mels[chosen, first + 1], part
        )
        # A gain of 10 dB multiplies the power of each mel band by 10.
        x += gain[..., None] * (math.log(10) / 10) / self._scale
        noise = rng.standard_normal((*chosen.shape, MELS), dtype=np.float32)
        return x.add_(torch.from_numpy(noise), alpha=self._ranges.noise)


def _uniform(rng: np.random.Generator, most: float, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(rng.uniform(-most, most, shape)).float()
