"""The module has problems that do not overfit: streams of transformed spoken digits.

Every sample is new: its recordings are drawn from 2,400, and their gain, speed, place
in time and noise are drawn as well. The held-out set has 600 other recordings, each
drawn about ten times with a fixed seed. The problems are those of `TASKS`.

The recordings are short matrices of log-mels, read once from FSDD. The sequence of
samples is endless, and sample n is a pure function of the seed and n. So N learners
with b samples each see the same samples as one learner with N b samples, and all
methods see the same ones.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from report import ROOT
from torch import Tensor, nn

from espnet_distopt.files.writing import whole_file
from espnet_distopt.recipes.corpora.fsdd import (
    SAMPLE_RATE,
    SPEAKERS,
    Take,
    read_recordings,
)
from espnet_distopt.simulation.virtual_learner import Gradient

FRAMES, MELS = 12, 40
SETS = {"train": range(10, 50), "valid": range(10)}
"""Set -> the numbers of its recordings, out of 50 of each digit and speaker."""
DATA = ROOT / "build" / "benchmarks" / f"log_mels_in_{FRAMES}_frames.pt"


class Recordings(NamedTuple):
    """Recordings of single digits.

    Attributes:
        log_mels: the features, (recordings, FRAMES, MELS); every recording is averaged
            to FRAMES frames, whatever its length.
        digits: the digit of each recording, (recordings,).
    """

    log_mels: Tensor
    digits: Tensor


def prepare(fsdd: Path) -> None:
    """Write the recordings to `DATA`, unless they are there.

    Args:
        fsdd: the folder of a copy of the Free Spoken Digit Dataset.
    """
    if DATA.exists():
        return
    content = {name: tuple(_read(fsdd, chosen)) for name, chosen in SETS.items()}
    DATA.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(DATA) as new, new.open("wb") as file:
        torch.save(content, file)


@functools.cache
def load() -> dict[str, Recordings]:
    """Return the sets that `prepare` has written."""
    content = torch.load(DATA, weights_only=True)
    return {name: Recordings(*tensors) for name, tensors in content.items()}


def _read(fsdd: Path, chosen: range) -> Recordings:
    # ESPnet takes long to import, and the worker processes only load what is written.
    from espnet2.asr.frontend.default import DefaultFrontend

    takes = [Take(d, s, i) for d, s, i in product(range(10), SPEAKERS, chosen)]
    speech = read_recordings(fsdd, takes)
    frontend = DefaultFrontend(
        fs=SAMPLE_RATE, n_fft=256, win_length=200, hop_length=80, n_mels=MELS
    )
    rows = []
    for take in takes:
        samples = torch.from_numpy(speech[take]).float()[None] / 2**15
        with torch.no_grad():
            features, _ = frontend(samples, torch.tensor([samples.shape[1]]))
        pooled = nn.functional.adaptive_avg_pool1d(features.transpose(1, 2), FRAMES)
        rows.append(pooled[0].T)
    return Recordings(torch.stack(rows), torch.tensor([take.digit for take in takes]))


Samples = tuple[Tensor, ...]
"""Tensors whose first dimension is that of the samples: features and labels."""

BLOCK = 1024
"""Samples that are drawn at once: the cost of a draw is shared by all of them."""
KEPT = 32
"""Blocks in memory. Asynchronous learners are at different steps, and a block that a
slow learner reads after all others must still be there, or be drawn again."""


class Stream:
    """An endless sequence of samples.

    Sample n is in row n % BLOCK of block n // BLOCK. A block has random numbers of its
    own, by the seed and its number.

    Args:
        draw: a function that draws a number of samples.
        seed: the seed of all samples, not negative.
    """

    def __init__(
        self, draw: Callable[[np.random.Generator, int], Samples], seed: int
    ) -> None:
        self._draw = draw
        self._seed = seed
        self._blocks: OrderedDict[int, Samples] = OrderedDict()

    def read(self, first: int, count: int) -> Samples:
        """Return `count` samples, from the sample with number `first` on."""
        parts = []
        while count > 0:
            number, row = divmod(first, BLOCK)
            taken = min(count, BLOCK - row)
            parts.append([x[row : row + taken] for x in self._block(number)])
            first, count = first + taken, count - taken
        if len(parts) == 1:
            return tuple(parts[0])
        return tuple(torch.cat(same) for same in zip(*parts, strict=True))

    def _block(self, number: int) -> Samples:
        if number not in self._blocks:
            # A list of numbers is a seed without collisions, unlike their sum.
            rng = np.random.default_rng([self._seed, number])
            self._blocks[number] = self._draw(rng, BLOCK)
            if len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]


GAIN, SPEED, SHIFT, NOISE = 10.0, 0.25, 1.5, 0.7
"""The largest change of a digit's level in dB, of the logarithm of its speed, and of
the frame at which a single one is; and the standard deviation of the noise on a
feature, relative to that of the feature over the recordings for training."""


class Transformed:
    """Recordings from which transformed samples are drawn.

    Args:
        recordings: the recordings.
        training: the recordings for training, by which features are normalized: each
            log-mel has mean 0 and standard deviation 1 over their frames.
    """

    def __init__(self, recordings: Recordings, training: Recordings) -> None:
        frames = training.log_mels.flatten(0, 1)
        self._scale = frames.std(0)
        self._log_mels = (recordings.log_mels - frames.mean(0)) / self._scale
        self._digits = recordings.digits

    def digits(self, rng: np.random.Generator, count: int) -> Samples:
        """Draw single digits.

        Returns:
            The features (count, FRAMES, MELS) and the digits (count,).
        """
        chosen = torch.from_numpy(rng.integers(len(self._digits), size=(count, 1)))
        middle = (FRAMES - 1) / 2
        speed = _uniform(rng, SPEED, (count, 1)).exp()
        shift = _uniform(rng, SHIFT, (count, 1))
        places = (torch.arange(FRAMES) - middle) * speed + middle + shift
        gain = _uniform(rng, GAIN, (count, 1))
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
        chosen = torch.from_numpy(rng.integers(len(self._digits), size=(count, length)))
        speeds = _uniform(rng, SPEED, (count, length)).exp()
        shares = frames * speeds / speeds.sum(1, keepdim=True)
        ends = shares.cumsum(1)
        times = (torch.arange(frames) + 0.5).expand(count, frames).contiguous()
        which = torch.searchsorted(ends[:, :-1].contiguous(), times, right=True)
        begins = (ends - shares).gather(1, which)
        places = (times - begins) / shares.gather(1, which) * FRAMES - 0.5
        gains = _uniform(rng, GAIN, (count, length)).gather(1, which)
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
        return x.add_(torch.from_numpy(noise), alpha=NOISE)


def _uniform(rng: np.random.Generator, most: float, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(rng.uniform(-most, most, shape)).float()


HIDDEN, WIDE, CELLS = 64, 128, 32
LENGTH, STRING_FRAMES = 3, 30
HELD_OUT = 6_000


class Blstm(nn.Module):
    """A BLSTM with a linear layer on each frame.

    Args:
        outputs: the number of classes.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(MELS, CELLS, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(2 * CELLS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (n, frames, outputs) of features (n, frames, MELS)."""
        scores: Tensor = self.linear(self.lstm(x)[0])
        return scores


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a stream is used for.

    Attributes:
        about: a phrase that describes samples, model and loss.
        model: a function that makes the model with random parameters.
        loss: the mean loss of a model over samples.
        draw: a function that draws a number of samples from recordings.
    """

    about: str
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Samples], Tensor]
    draw: Callable[[Transformed, np.random.Generator, int], Samples]


def _perceptron(*hidden: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = FRAMES * MELS
    for units in hidden:
        layers += [nn.Linear(inputs, units), nn.Tanh()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def _digit_loss(model: nn.Module, samples: Samples) -> Tensor:
    x, digits = samples
    return nn.functional.cross_entropy(model(x), digits)


def _label_loss(model: nn.Module, samples: Samples) -> Tensor:
    x, labels, _ = samples
    return nn.functional.cross_entropy(model(x).flatten(0, 1), labels.flatten())


def _string_loss(model: nn.Module, samples: Samples) -> Tensor:
    """Return the CTC loss; the blank is class 10."""
    x, _, strings = samples
    scores = model(x).log_softmax(-1).transpose(0, 1)
    frames = torch.full((len(x),), x.shape[1])
    lengths = torch.full((len(x),), strings.shape[1])
    total = nn.functional.ctc_loss(
        scores, strings, frames, lengths, blank=10, reduction="sum"
    )
    return total / len(x)


def _draw_strings(
    transformed: Transformed, rng: np.random.Generator, count: int
) -> Samples:
    return transformed.strings(rng, count, LENGTH, STRING_FRAMES)


_BLSTM = (
    f"strings of {LENGTH} digits in {STRING_FRAMES} frames, a BLSTM of {CELLS} cells a "
    "direction"
)
_DIGITS = f"{FRAMES} frames of a digit, shifted by up to {SHIFT:g}, a network with"
TASKS = {
    "digits": Task(
        about=f"{_DIGITS} {HIDDEN} hidden units, cross-entropy a digit",
        model=lambda: _perceptron(HIDDEN),
        loss=_digit_loss,
        draw=Transformed.digits,
    ),
    "deep digits": Task(
        about=f"{_DIGITS} two hidden layers of {WIDE} units, cross-entropy a digit",
        model=lambda: _perceptron(WIDE, WIDE),
        loss=_digit_loss,
        draw=Transformed.digits,
    ),
    "labels": Task(
        about=f"{_BLSTM}, cross-entropy a frame",
        model=lambda: Blstm(10),
        loss=_label_loss,
        draw=_draw_strings,
    ),
    "strings": Task(
        about=f"{_BLSTM}, CTC loss a string, whose times are not known",
        model=lambda: Blstm(11),
        loss=_string_loss,
        draw=_draw_strings,
    ),
}
"""Problem -> its task."""


class StreamProblem:
    """A stream as a problem, of which each learner has a share of the samples.

    Attributes:
        held_out: the samples that are held out.

    Args:
        task: what the stream is used for.
        sets: the recordings, `train` and `valid`.
        seed: the seed of the model's start and of the samples, not negative.
        held_out: the number of samples that are held out.
    """

    def __init__(
        self,
        task: Task,
        sets: dict[str, Recordings],
        seed: int,
        held_out: int = HELD_OUT,
    ) -> None:
        self.batch_size = 1
        self._task = task
        self._seed = seed
        train = Transformed(sets["train"], sets["train"])
        valid = Transformed(sets["valid"], sets["train"])
        self._stream = Stream(functools.partial(task.draw, train), seed)
        # The same for all seeds, so it is drawn by a seed of its own.
        self.held_out = task.draw(valid, np.random.default_rng(0), held_out)

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a learner's model, and the function that computes its gradients."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self._seed)
            model = self._task.model()

        def gradient(step: int) -> float:
            first = (step * size + rank) * self.batch_size
            samples = self.read(first, self.batch_size)
            loss = self._task.loss(model, samples)
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        return model, gradient

    def read(self, first: int, count: int) -> Samples:
        """Return samples of the stream, from the sample with number `first` on."""
        return self._stream.read(first, count)

    def held_out_loss(self, model: nn.Module) -> float:
        """Return the mean loss over the samples that are held out."""
        with torch.no_grad():
            return float(self._task.loss(model, self.held_out))


@functools.lru_cache(maxsize=9)
def problem(name: str, seed: int) -> StreamProblem:
    """Return a problem with a seed; the caller sets its `batch_size`."""
    torch.set_num_threads(1)
    return StreamProblem(TASKS[name], load(), seed)
