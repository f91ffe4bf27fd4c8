"""The module has problems that do not overfit: streams of transformed spoken digits.

- DIGITS: a small network tells ten single digits apart.
- LABELS: a small BLSTM labels each frame of a string of digits.
- STRINGS: the same BLSTM learns the digits of a string by CTC, without their times.

Every sample is new: its recordings are drawn from 2,400, and their gain, speed, place
in time and noise are drawn as well. The held-out set has 600 other recordings, each
drawn about ten times with a fixed seed.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from convergence.recordings import FRAMES, MELS, Recordings, load
from convergence.stream import Samples, Stream
from convergence.transforms import Ranges, Transformed
from espnet_distopt.simulation.virtual_learner import Gradient

HIDDEN, CELLS = 64, 32
LENGTH, STRING_FRAMES = 3, 30
HELD_OUT = 6_000
RANGES = Ranges()

_DRAWN = (
    f"samples drawn anew from 2,400 recordings of FSDD by six speakers, {MELS} "
    f"log-mels, gain up to {RANGES.gain:g} dB, log speed up to {RANGES.speed:g}, noise "
    f"of {RANGES.noise:g} standard deviations; {HELD_OUT:,} drawn once from 600 other "
    "recordings are held out"
)
_STRINGS = f"strings of {LENGTH} digits in {STRING_FRAMES} frames"
DIGITS = (
    f"stream of single digits: {FRAMES} frames shifted by up to {RANGES.shift:g}, a "
    f"network with {HIDDEN} hidden units, cross-entropy a digit; {_DRAWN}"
)
LABELS = (
    f"stream of labelled frames: {_STRINGS}, a BLSTM of {CELLS} cells a direction, "
    f"cross-entropy a frame; {_DRAWN}"
)
STRINGS = (
    f"stream of strings: {_STRINGS}, a BLSTM of {CELLS} cells a direction, CTC loss a "
    f"string; {_DRAWN}"
)


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
        model: a function that makes the model with random parameters.
        loss: the mean loss of a model over samples.
        draw: a function that draws a number of samples from recordings.
    """

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Samples], Tensor]
    draw: Callable[[Transformed, np.random.Generator, int], Samples]


def _perceptron() -> nn.Module:
    first = nn.Linear(FRAMES * MELS, HIDDEN)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(HIDDEN, 10))


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


TASKS = {
    DIGITS: Task(model=_perceptron, loss=_digit_loss, draw=Transformed.digits),
    LABELS: Task(model=lambda: Blstm(10), loss=_label_loss, draw=_draw_strings),
    STRINGS: Task(model=lambda: Blstm(11), loss=_string_loss, draw=_draw_strings),
}
"""Problem -> its task. The text of a problem names all that its losses depend on."""


class StreamProblem:
    """A stream as a problem (`espnet_distopt.simulation.study.problem.Problem`).

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
        self.samples = len(sets["train"].digits)
        self._task = task
        self._seed = seed
        train = Transformed(sets["train"], sets["train"], RANGES)
        valid = Transformed(sets["valid"], sets["train"], RANGES)
        self._stream = Stream(functools.partial(task.draw, train), seed)
        # The same for all seeds, so it is drawn by a seed of its own.
        self._held_out = task.draw(valid, np.random.default_rng(0), held_out)

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a learner's model, and the function that computes its gradients."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self._seed)
            model = self._task.model()

        def gradient(step: int) -> float:
            first = (step * size + rank) * self.batch_size
            samples = self._stream.read(first, self.batch_size)
            loss = self._task.loss(model, samples)
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        return model, gradient

    def held_out_loss(self, model: nn.Module) -> float:
        """Return the mean loss over the samples that are held out."""
        with torch.no_grad():
            return float(self._task.loss(model, self._held_out))

    def describe(self) -> str:
        """Return one phrase that describes the problem, for captions."""
        about = next(text for text, task in TASKS.items() if task is self._task)
        return f"{about}, seed {self._seed}"


@functools.lru_cache(maxsize=3)
def problem(about: str, seed: int) -> StreamProblem:
    """Return a problem with a seed; the caller sets its `batch_size`.

    Args:
        about: DIGITS, LABELS or STRINGS.
        seed: the seed of the model's start and of the samples.
    """
    torch.set_num_threads(1)
    return StreamProblem(TASKS[about], load(), seed)
