"""The module runs random schedules of small clusters and checks the invariants.

One line holds all that a schedule depends on: the algorithm, the number of learners,
the seed, and options. This command runs a schedule again:

    python -m tests.simulation.schedules 'adpsgd learners=5 seed=123'
"""

import ast
import hashlib
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from espnet_distopt.algorithms import check, lookup
from espnet_distopt.errors import InputError, PeerLostError, one_line_errors
from espnet_distopt.simulation.compute import Compute
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.network import Link, Network
from espnet_distopt.simulation.simulation import DeadlockError, Simulation
from espnet_distopt.simulation.virtual_learner import VirtualLearner
from tests.simulation.invariants import InvariantError, Invariants
from tests.simulation.replay import record

COMMAND = f"python -m {__spec__.name if __spec__ else __name__}"


class VectorModel(nn.Module):
    """A model whose only parameter is a vector `x` of shape (2,)."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(2, dtype=torch.float64))


class GivenGradients(VirtualLearner):
    """A virtual learner whose gradients are given, so that it needs no autograd.

    Args:
        table: the gradients, shape (steps, 2); each step descends the next row.
        algorithm: the name of the algorithm.
        arguments: the further arguments of `VirtualLearner`.
    """

    def __init__(self, table: Tensor, algorithm: str, **arguments: Any) -> None:
        vector = VectorModel()
        optimizer = torch.optim.SGD(vector.parameters(), lr=0.1, foreach=False)
        super().__init__(vector, optimizer, lambda _: 0.0, algorithm, **arguments)
        self._table = table

    def _descend(self, seed: int) -> float:
        learner = self.learner
        gradient = self._table[learner.steps]
        if learner.grads is None:
            learner.parameters[0].grad = gradient
        else:
            learner.grads.copy_(gradient)
            learner.used = [True]
            learner.use_gradients(learner.used)
        return 0.0


@dataclass(frozen=True, repr=False)
class Schedule:
    """A random cluster that trains a vector; its repr is the line that repeats it.

    Attributes:
        algorithm: the name of the algorithm.
        learners: the number of learners.
        seed: the seed that decides how long steps and messages take, who is a
            straggler, which messages are lost, and how many steps each learner makes
            in each epoch.
        options: (name, value) of options of the algorithm. Options that the line does
            not give may be drawn at random.
        faults: the number of faults: crashes, silences and joins, drawn from the seed.
    """

    algorithm: str
    learners: int
    seed: int
    options: tuple[tuple[str, Any], ...] = ()
    faults: int = 0

    @classmethod
    def parse(cls, line: str) -> "Schedule":
        """Return the schedule whose repr is `line`.

        Raises:
            InputError: `line` does not have this form.
        """
        algorithm, *pairs = line.split()
        try:
            values = dict(pair.split("=") for pair in pairs)
            learners, seed = (int(values.pop(name)) for name in ("learners", "seed"))
            faults = int(values.pop("faults", 0))
        except (KeyError, ValueError):
            raise InputError(
                f"'{line}' is not a schedule: NAME learners=N seed=S [OPTION=VALUE ...]"
            ) from None
        options = tuple((k, _value(v)) for k, v in values.items())
        return cls(algorithm, learners, seed, options, faults)

    def __repr__(self) -> str:
        faults = [("faults", self.faults)] if self.faults else []
        fields = [("learners", self.learners), ("seed", self.seed), *faults]
        fields += self.options
        return " ".join([self.algorithm, *(f"{k}={v}" for k, v in fields)])

    def run(self) -> str:
        """Run the schedule, and return a digest of the order of its sections.

        A section is what a learner's program does between two effects. Two runs with
        the same digest have had the same order of events.

        Raises:
            InputError: the algorithm or an option does not exist.
            InvariantError: an invariant does not hold; the last line of the message is
                the command that runs the schedule again.
        """
        check(self.algorithm, dict(self.options), self.learners)
        source = random.Random(f"schedule {self.seed}")
        options = self._drawn(source) | dict(self.options)
        per_node = options.get("per_node", 1)
        simulation = Simulation(
            self._learners(options),
            self._compute(source),
            self._network(source, per_node),
            seed=self.seed,
            **self._faults(),
        )
        record(simulation)
        try:
            simulation.start()
            invariants = Invariants(simulation, max_events=10_000)
            for epoch in self._epochs(source, per_node):
                steps = [v.learner.steps for v in simulation.learners]
                simulation.epoch(epoch)
                ends = [sum(pair) for pair in zip(steps, epoch, strict=True)]
                invariants.check_end(ends)
        except PeerLostError as error:
            if "all learners are lost" not in str(error):
                raise InvariantError(f"{error}\n{COMMAND} '{self}'") from error
        except (InvariantError, DeadlockError, AssertionError) as error:
            raise InvariantError(f"{error}\n{COMMAND} '{self}'") from error
        order = repr((self.algorithm, simulation.engine.sections)).encode()
        return hashlib.blake2b(order, digest_size=8).hexdigest()

    def _drawn(self, source: random.Random) -> dict[str, Any]:
        """Draw values for options; return those of them that the algorithm has."""
        drawn = {
            "max_staleness": source.choice([1, 2, 3, 16]),
            "from_consensus": source.random() < 0.2,
        }
        known = lookup(self.algorithm).config.__dataclass_fields__
        return {name: value for name, value in drawn.items() if name in known}

    def _learners(self, options: Mapping[str, Any]) -> list[VirtualLearner]:
        generator = torch.Generator().manual_seed(self.seed)
        shape = self.learners, EPOCHS * STEPS, 2
        tables = torch.randn(shape, dtype=torch.float64, generator=generator)
        return [
            GivenGradients(
                table, self.algorithm, rank=rank, size=self.learners, **options
            )
            for rank, table in enumerate(tables)
        ]

    def _compute(self, source: random.Random) -> Compute:
        slow = {}
        if source.random() < 0.3:
            slow = {source.randrange(self.learners): source.choice([10.0, 100.0])}
        spread = source.choice([0.0, 0.3, 1.0, 2.0])
        return Compute(seconds=1, spread=spread, slowdown=slow, seed=self.seed)

    def _network(self, source: random.Random, per_node: int) -> Network:
        return Network(
            inside=Link(latency=10 ** source.uniform(-4, 0)),
            between=Link(latency=10 ** source.uniform(-3, 1.5)),
            per_node=per_node,
            spread=source.choice([0.0, 0.5, 1.5]),
            loss=source.choice([0.0, 0.0, 0.2, 0.6]),
            retry=source.choice([0.1, 5.0]),
            seed=self.seed,
        )

    def _faults(self) -> dict[str, Any]:
        """Draw the faults, and how long a silent learner is waited for."""
        source = random.Random(f"faults {self.seed}")
        silence = source.choice([1.0, 5.0, 30.0])
        faults: list[Fault] = []
        while len(faults) < self.faults:
            at, rank = 10 ** source.uniform(-1, 1.6), source.randrange(self.learners)
            kind = source.choice(["crash", "crash", "silence", "join"])
            seconds = 0.0
            if kind == "silence":
                seconds = silence * source.choice([0.3, 0.99, 1.01, 3.0])
            if kind == "join" and faults:  # of one that may be dead by then
                rank, at = faults[-1].rank, faults[-1].at + source.uniform(0, silence)
            faults.append(Fault(at=at, rank=rank, kind=kind, seconds=seconds))  # type: ignore[arg-type]
        return {"faults": faults, "silence": silence}

    def _epochs(self, source: random.Random, per_node: int) -> list[list[int]]:
        """Return the number of steps of each learner, for each epoch.

        Learners of one node make equally many steps.
        """
        nodes = self.learners // per_node
        epochs = [
            [source.randrange(STEPS + 1) for _ in range(nodes)]
            for _ in range(source.randint(1, EPOCHS))
        ]
        return [[n for n in steps for _ in range(per_node)] for steps in epochs]


EPOCHS = 2
"""The largest number of epochs of a schedule."""
STEPS = 5
"""The largest number of steps of a learner in an epoch."""


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the schedule that the command line gives."""
    line = " ".join(sys.argv[1:] if cmd is None else cmd)
    if not line:
        raise InputError("which schedule? NAME learners=N seed=S [OPTION=VALUE ...]")
    try:
        digest = Schedule.parse(line).run()
    except InvariantError as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
    print(f"{line}: all invariants hold, order of events {digest}")


if __name__ == "__main__":
    main()
