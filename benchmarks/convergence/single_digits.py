"""The module has a cheap problem of real speech: it tells ten spoken digits apart.

It is so small that 32 virtual learners make hundreds of steps in seconds.
"""

import functools
import os
from itertools import product
from pathlib import Path

import torch
from espnet2.asr.frontend.default import DefaultFrontend
from torch import Tensor, nn

from convergence.digits import ROOT
from espnet_distopt.corpora.fsdd import SAMPLE_RATE, SPEAKERS, Take, read_recordings
from espnet_distopt.simulation.virtual_learner import Gradient

FRAMES, MELS, HIDDEN = 12, 40, 64
SETS = {"train": range(10, 50), "valid": range(10)}
"""Set -> the numbers of its recordings, out of 50 of each digit and speaker."""
DATA = ROOT / "build" / "benchmarks" / f"digits_in_{FRAMES}_frames.pt"
KEY = f"digits in {FRAMES} frames, {HIDDEN} hidden"
ABOUT = (
    "single digits from FSDD by six speakers, 2,400 recordings for training and 600 "
    f"others held out; {MELS} log-mel features, averaged to {FRAMES} frames a digit; "
    f"a network with {HIDDEN} hidden units; losses are cross-entropies"
)


def prepare(fsdd: Path) -> None:
    """Write the features to `DATA`, unless they are there.

    Args:
        fsdd: the folder of a copy of the Free Spoken Digit Dataset.
    """
    if DATA.exists():
        return
    sets = {name: _read(fsdd, chosen) for name, chosen in SETS.items()}
    mean, scale = sets["train"][0].mean(0), sets["train"][0].std(0)
    content = {name: ((x - mean) / scale, y) for name, (x, y) in sets.items()}
    DATA.parent.mkdir(parents=True, exist_ok=True)
    new = DATA.with_suffix(".new")
    torch.save(content, new)
    os.replace(new, DATA)


def _read(fsdd: Path, chosen: range) -> tuple[Tensor, Tensor]:
    """Return the features (n, FRAMES * MELS) and the digits (n,) of recordings."""
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
        rows.append(pooled.flatten())
    return torch.stack(rows), torch.tensor([take.digit for take in takes])


class SingleDigits:
    """The problem, for any number of virtual learners.

    It follows the protocol `espnet_distopt.simulation.study.problem.Problem`. Batches
    are cut from an endless sequence of shuffled passes over the training set, so N
    learners with b samples each see the same batches as one learner with N b samples.

    Args:
        seed: the seed of the model's start and of the passes.
    """

    def __init__(self, seed: int) -> None:
        self.batch_size = 1
        self._seed = seed
        sets = torch.load(DATA, weights_only=True)
        self._x, self._y = sets["train"]
        self._held_out = sets["valid"]
        self.samples = len(self._x)
        self._orders: dict[int, Tensor] = {}

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a learner's model, and the function that computes its gradients."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self._seed)
            model = nn.Sequential(
                nn.Linear(FRAMES * MELS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)
            )

        def gradient(step: int) -> float:
            first = (step * size + rank) * self.batch_size
            chosen = self._drawn(first, first + self.batch_size)
            loss = nn.functional.cross_entropy(model(self._x[chosen]), self._y[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        return model, gradient

    def _drawn(self, start: int, stop: int) -> Tensor:
        """Return the samples at places [start, stop) of the sequence of passes."""
        places = torch.arange(start, stop)
        passes = places // self.samples
        return torch.stack(
            [
                self._order(int(number))[place % self.samples]
                for number, place in zip(passes, places, strict=True)
            ]
        )

    def _order(self, number: int) -> Tensor:
        if number not in self._orders:
            generator = torch.Generator().manual_seed(1000 * self._seed + number)
            self._orders[number] = torch.randperm(self.samples, generator=generator)
        return self._orders[number]

    def held_out_loss(self, model: nn.Module) -> float:
        """Return the cross-entropy on the recordings that are held out."""
        x, y = self._held_out
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(x), y))

    def describe(self) -> str:
        """Return one phrase that describes the problem, for captions."""
        return f"{ABOUT}, seed {self._seed}"


@functools.lru_cache(maxsize=3)
def problem(seed: int) -> SingleDigits:
    """Return the problem with a seed; the caller sets its `batch_size`.

    A few problems stay in memory, so that a worker reads the data once per seed.
    """
    torch.set_num_threads(1)
    return SingleDigits(seed)
