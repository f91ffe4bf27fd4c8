"""The simulation driver: N virtual learners in one process, under a virtual clock.

It runs the same algorithms as the process-group driver, with real gradients of real
models. Only time is simulated (`cluster`). A run is a pure function of its arguments.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.compute import Compute
from espnet_distopt.simulation.engine import (
    DeadlockError,
    Engine,
    Programs,
    Rejoin,
)
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.gossip import Transfer
from espnet_distopt.simulation.network import Network
from espnet_distopt.simulation.sides import Sides
from espnet_distopt.simulation.virtual_learner import Step, VirtualLearner

__all__ = ["DeadlockError", "Simulation"]


@dataclass
class Simulation:
    """Runs virtual learners: `start`, then epochs, with `consensus` after any of them.

    A simulation that has raised an error cannot go on.

    Attributes:
        learners: the virtual learners, in the order of their ranks.
        compute: the model of how long steps take.
        network: the model of how long messages take.
        seed: the seed of torch's random numbers in gradients.
        faults: what happens to learners. If the algorithm does not survive the loss of
            a learner, the run ends with an error.
        silence: the virtual seconds after which a learner that is silent is given up.
        check: function that is called after every event, to look at invariants.
        engine_type: what makes the engine that runs the programs. A test gives one
            that runs them in an order of its own.
        record: one entry for each step of each learner, in the order of time.

    Raises:
        InputError: `learners` are not all learners in the order of their ranks, or a
            slowdown or a fault belongs to none of them.
    """

    learners: Sequence[VirtualLearner]
    compute: Compute = field(default_factory=Compute)
    network: Network = field(default_factory=Network)
    seed: int = 0
    faults: Sequence[Fault] = ()
    silence: float = 30.0
    check: Callable[["Simulation"], None] | None = None
    engine_type: Callable[..., Engine] = Engine
    record: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        found = [(v.learner.rank, v.learner.size) for v in self.learners]
        size = len(found)
        if not found or found != [(rank, size) for rank in range(size)]:
            raise InputError(
                "a simulation needs every learner once, in the order of ranks; "
                f"(rank, size) found: {found}"
            )
        _check_ranks("slowdown", self.compute.slowdown, size)
        _check_ranks("fault", [fault.rank for fault in self.faults], size)
        self.engine = self.engine_type(
            self.learners, self.network, self.record.append, self.faults, self.silence
        )

    @property
    def seconds(self) -> float:
        """Virtual time so far."""
        return self.engine.clock.now / 1e9

    @property
    def in_flight(self) -> Mapping[int, Transfer]:
        """For each rank that exchanges, what its exchange has not brought it yet."""
        return self.engine.gossip.in_flight

    @property
    def sides(self) -> Sequence[Sides]:
        """What the two sides of each learner do now."""
        return self.engine.sides

    def start(self) -> None:
        """Let all learners begin at learner 0's model."""
        self._run(v.start() for v in self.learners)

    def epoch(self, steps: int | Sequence[int], pausing: bool = False) -> None:
        """Train for an epoch of `steps` steps, the same or one number per learner.

        Args:
            steps: the number of steps of all learners, or one number per learner.
            pausing: whether all learners stop within the epoch, as in `Session.pause`.
                `state_dict` comes next, and a simulation that has loaded it makes the
                steps that are left.

        Raises:
            DeadlockError: an algorithm has made learners wait for each other.
            InputError: not as many numbers of steps as learners.
            PeerLostError: a learner has waited too long for one that has crashed.
        """
        size = len(self.learners)
        counts = [steps] * size if isinstance(steps, int) else steps
        if len(counts) != size:
            raise InputError(f"{len(counts)} numbers of steps for {size} learners")
        pairs = zip(self.learners, counts, strict=True)
        programs = (v.epoch(n, self.compute, self.seed, pausing) for v, n in pairs)
        ends = [v.learner.steps + n for v, n in zip(self.learners, counts, strict=True)]

        def rejoin(ranks: Sequence[int]) -> list[Generator[Any, Any, None]]:
            """Return the programs by which replacements make the steps left."""
            left = max(min(ends[r] - self.learners[r].learner.steps for r in ranks), 0)
            parts = left, self.compute, self.seed, pausing
            return [self.learners[rank].epoch(*parts) for rank in ranks]

        self._run(programs, rejoin)

    def consensus(self) -> Tensor:
        """Return the consensus model of the living learners, (P,)."""
        return next(iter(self.consensus_models().values()))

    def consensus_models(self) -> dict[int, Tensor]:
        """Return the consensus model (P,) as each living learner has it, by rank."""
        models = self._run(v.consensus() for v in self.learners)
        return {rank: models[rank] for rank in self.engine.members.now.ranks}

    def _run(self, programs: Programs, rejoin: Rejoin | None = None) -> list[Any]:
        in_epoch = rejoin is not None
        return self.engine.run(programs, self._after_event, in_epoch, rejoin)

    def _after_event(self) -> None:
        if self.check is not None:
            self.check(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the state between epochs or after a pause, without the record.

        It has tensors, numbers, strings, lists and dicts only.
        """
        return {
            "learners": [virtual.state_dict() for virtual in self.learners],
            "now": self.engine.clock.now,
            "messages": self.engine.wire.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned, in place of `start`.

        Raises:
            InputError: it was saved by another number of learners, another model or
                another algorithm.
        """
        saved = state["learners"]
        if len(saved) != len(self.learners):
            raise InputError(
                f"{len(saved)} learners saved the state, not {len(self.learners)}"
            )
        for virtual, one in zip(self.learners, saved, strict=True):
            virtual.load_state_dict(one)
        self.engine.clock.now = state["now"]
        self.engine.wire.load_state_dict(state["messages"])


def _check_ranks(what: str, of: Iterable[int], size: int) -> None:
    for rank in of:
        if rank not in range(size):
            raise InputError(f"{what} of learner {rank}, of {size} learners")
