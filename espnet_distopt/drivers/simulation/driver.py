"""The simulation driver: N virtual learners in one process, under a virtual clock.

It runs the very algorithms that the process-group driver runs, with real gradients of
real models; only time is simulated (`cluster`). One thread, one queue of events ordered
by (integer nanoseconds, sequence number): a run is a pure function of its arguments.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from espnet_distopt.drivers.simulation.cluster import Clock, Compute, Network, Wire
from espnet_distopt.drivers.simulation.collective import Collectives
from espnet_distopt.drivers.simulation.gossip import Transfer, VirtualGossip
from espnet_distopt.drivers.simulation.learner import (
    EndGossip,
    Meet,
    Side,
    Sides,
    Step,
    Stepped,
    VirtualLearner,
    Work,
)
from espnet_distopt.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    AwaitGossip,
    AwaitInvitation,
    AwaitStep,
    Begin,
    Broadcast,
    Exchange,
    Invite,
    NeighbourAllGather,
    Retire,
    Wait,
)
from espnet_distopt.errors import InputError


class DeadlockError(RuntimeError):
    """Nobody can go on, and not everybody is done; the message says who waits."""


class Handle:
    """A collective that has begun: its result, or who waits for it."""

    def __init__(self) -> None:
        self._result: list[Any] = []
        self._waiting: Callable[[Any], None] | None = None

    def complete(self, result: Any) -> None:
        """Keep the result, or hand it to who waits."""
        if self._waiting is None:
            self._result = [result]
        else:
            self._waiting(result)

    def wait(self, resume: Callable[[Any], None]) -> None:
        """Call `resume` with the result, now or when it is there."""
        if self._result:
            resume(self._result[0])
        else:
            self._waiting = resume


@dataclass
class Simulation:
    """Runs virtual learners: `start`, then `epoch`s, with `consensus` after any.

    A simulation that has raised an error cannot go on.

    Attributes:
        learners: in the order of their ranks.
        compute: how long steps take.
        network: how long messages take.
        seed: of torch's random numbers in gradients.
        check: is called after every event, to look at invariants.
        record: one entry for each step of each learner, in the order of time.

    Raises:
        InputError: `learners` are not all learners, in the order of their ranks, or
            a slowdown is of none of them.
    """

    learners: Sequence[VirtualLearner]
    compute: Compute = field(default_factory=Compute)
    network: Network = field(default_factory=Network)
    seed: int = 0
    check: Callable[["Simulation"], None] | None = None
    record: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        found = [(v.learner.rank, v.learner.size) for v in self.learners]
        size = len(found)
        if not found or found != [(rank, size) for rank in range(size)]:
            raise InputError(
                "a simulation needs every learner once, in the order of ranks; "
                f"(rank, size) found: {found}"
            )
        for rank in self.compute.slowdown:
            if rank not in range(size):
                raise InputError(f"slowdown of learner {rank}, of {size} learners")
        self._clock = Clock()
        wire = Wire(self._clock, self.network)
        self._gossip = VirtualGossip(self._clock, wire, self._receive)
        self._collectives = Collectives(
            self._clock, self.network, wire, size, self._count_bytes
        )
        self._sides: list[Sides] = []

    @property
    def seconds(self) -> float:
        """Virtual time so far."""
        return self._clock.now / 1e9

    @property
    def in_flight(self) -> Mapping[int, Transfer]:
        """Rank -> what its exchange has not brought it yet."""
        return self._gossip.in_flight

    def start(self) -> None:
        """Let all learners begin at learner 0's parameters."""
        self._run(v.algorithm.start(v.learner) for v in self.learners)

    def epoch(self, steps: int | Sequence[int]) -> None:
        """Train for an epoch of `steps` steps, the same or one number per learner.

        Raises:
            DeadlockError: an algorithm has made learners wait for each other.
            InputError: not as many numbers of steps as learners.
        """
        size = len(self.learners)
        counts = [steps] * size if isinstance(steps, int) else steps
        if len(counts) != size:
            raise InputError(f"{len(counts)} numbers of steps for {size} learners")
        pairs = zip(self.learners, counts, strict=True)
        self._run(v.epoch(n, self.compute, self.seed) for v, n in pairs)

    def consensus(self) -> Tensor:
        """Return the consensus model, (P,)."""
        models = self._run(v.algorithm.consensus(v.learner) for v in self.learners)
        model: Tensor = models[0]
        return model

    # Programs

    def _run(self, programs: Iterable[Generator[Any, Any, Any]]) -> list[Any]:
        """Run one training program for each learner until nothing is left to do."""
        self._sides = [
            Sides(
                Side(v.learner.rank, "training", program),
                Side(v.learner.rank, "gossip", v.algorithm.gossip(v.learner)),
            )
            for v, program in zip(self.learners, programs, strict=True)
        ]
        for sides in self._sides:
            self._resume(sides.training)
        while self._clock.tick():
            if self.check is not None:
                self.check(self)
        self._check_all_ended()
        return [sides.training.value for sides in self._sides]

    def _check_all_ended(self) -> None:
        sides = [s.training for s in self._sides]
        sides += [s.gossip for s in self._sides if s.gossiping]
        stuck = "; ".join(side.story() for side in sides if not side.ended)
        if stuck:
            raise DeadlockError(f"at {self.seconds:g} s, these wait for ever: {stuck}")

    def _resume(self, side: Side, result: Any = None, seconds: float = 0.0) -> None:
        side.waits_for = None
        when = self._clock.later(seconds)
        self._clock.at(when, partial(self._advance, side, result))

    def _advance(self, side: Side, result: Any) -> None:
        """Run a program up to its next effect, and see to the effect."""
        sides = self._sides[side.rank]
        side.waits_for = None
        try:
            side.waits_for = side.program.send(result)
        except StopIteration as stop:
            side.ended, side.value = True, stop.value
        if side is sides.gossip:
            if isinstance(sides.training.waits_for, AwaitGossip):
                self._resume(sides.training)
            if not side.ended:
                self._perform_gossip(side, side.waits_for)
            elif isinstance(sides.training.waits_for, EndGossip):
                self._resume(sides.training)
        elif not side.ended:
            self._perform_training(side, side.waits_for)

    # Effects

    def _perform_training(self, side: Side, effect: Any) -> None:
        sides = self._sides[side.rank]
        match effect:
            case Work(seconds):
                self._resume(side, seconds=seconds)
            case Stepped(loss):
                steps = self.learners[side.rank].learner.steps
                self.record.append(Step(self.seconds, side.rank, steps, loss))
                sides.published += 1
                self._let_gossip(sides)
                self._resume(side)
            case EndGossip():
                sides.ending = True
                self._let_gossip(sides)
                if sides.gossip.ended:
                    self._resume(side)
            case Begin(collective):
                handle = Handle()
                self._collectives.join(side.rank, collective, handle.complete)
                self._resume(side, handle)
            case Wait(handle):
                handle.wait(partial(self._resume, side))
            case (
                AllReduceMean()
                | Broadcast()
                | AllToAll()
                | AllGather()
                | NeighbourAllGather()
                | Meet()
            ):
                done = partial(self._advance, side)
                self._collectives.join(side.rank, effect, done)
            case AwaitGossip():
                pass  # until the gossip side advances
            case _:
                raise TypeError(f"{effect} belongs in a gossip program")

    def _perform_gossip(self, side: Side, effect: Any) -> None:
        match effect:
            case AwaitStep() | AwaitInvitation():
                self._wake(self._sides[side.rank])
            case Invite(peer) | Retire(peer):
                self._mail(side.rank, peer, retired=isinstance(effect, Retire))
                self._resume(side)
            case Exchange():
                self._exchange(side.rank, effect)
            case _:
                raise TypeError(f"{effect} does not belong in a gossip program")

    def _count_bytes(self, rank: int, nbytes: int) -> None:
        self.learners[rank].bytes_sent += nbytes

    def _let_gossip(self, sides: Sides) -> None:
        """Begin the gossip of an epoch, at the end of its first step, or wake it."""
        if sides.gossiping:
            self._wake(sides)
        else:
            sides.gossiping = True
            self._resume(sides.gossip)

    def _wake(self, sides: Sides) -> None:
        over, result = sides.answer()
        if over:
            self._resume(sides.gossip, result)

    def _mail(self, sender: int, receiver: int, retired: bool) -> None:
        def arrive() -> None:
            sides.mailbox.append((sender, retired))
            self._wake(sides)

        sides = self._sides[receiver]
        self._gossip.mail(sender, receiver, arrive)

    def _exchange(self, rank: int, effect: Exchange) -> None:
        nbytes = self._gossip.exchange(rank, effect)
        for end in (rank, effect.peer):
            self._count_bytes(end, nbytes)

    def _receive(self, rank: int, tensor: Tensor) -> None:
        self._advance(self._sides[rank].gossip, tensor)
