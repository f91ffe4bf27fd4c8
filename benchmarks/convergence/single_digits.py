"""The module has a cheap problem of real speech: it tells ten spoken digits apart.

It is so small that 32 virtual learners make hundreds of steps in seconds.
"""

import functools

import torch
from torch import Tensor, nn

from convergence.recordings import FRAMES, MELS, load, prepare
from espnet_distopt.simulation.virtual_learner import Gradient

__all__ = ["ABOUT", "KEY", "SingleDigits", "prepare", "problem"]

HIDDEN = 64
KEY = f"digits in {FRAMES} frames, {HIDDEN} hidden"
ABOUT = (
    "single digits from FSDD by six speakers, 2,400 recordings for training and 600 "
    f"others held out; {MELS} log-mel features, averaged to {FRAMES} frames a digit; "
    f"a network with {HIDDEN} hidden units; losses are cross-entropies"
)


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
        flat = {
            name: (x.transpose(1, 2).flatten(1), y) for name, (x, y) in load().items()
        }
        mean, scale = flat["train"][0].mean(0), flat["train"][0].std(0)
        sets = {name: ((x - mean) / scale, y) for name, (x, y) in flat.items()}
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
