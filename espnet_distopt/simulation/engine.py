"""The engine of a simulation: runs the programs of all learners, event by event.

One thread, one queue of events ordered by (integer nanoseconds, sequence number).
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from espnet_distopt.core.effects import (
    AwaitGossip,
    AwaitInvitation,
    AwaitStep,
    Barrier,
    Begin,
    Collective,
    Exchange,
    Invite,
    Published,
    Retire,
    RunInBackground,
    StartGossip,
    StopGossip,
    Wait,
)
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.cluster import Network
from espnet_distopt.simulation.collective import Handle, SimulatedCollectives
from espnet_distopt.simulation.crashes import Crashes
from espnet_distopt.simulation.gossip import VirtualGossip
from espnet_distopt.simulation.sides import Side, Sides
from espnet_distopt.simulation.virtual_learner import (
    Step,
    Stepped,
    VirtualLearner,
    Work,
)
from espnet_distopt.simulation.wire import Wire

Programs = Iterable[Generator[Any, Any, Any]]

Section = tuple[int, str, Any]
"""A rank, one of its sides, and what its program was sent, if that is a decision."""


class DeadlockError(RuntimeError):
    """Learners wait for each other for ever; the message says who waits for what."""


class Engine:
    """Advances both sides of each learner, and carries out their effects.

    Attributes:
        clock: the virtual clock.
        wire: the arrival of messages between learners.
        gossip: the mail and the exchanges between learners.
        sides: the two sides of each learner, in the programs that run or ran last.
        in_epoch: whether these programs train.
        last: the side that the last event has advanced; None if it advanced none.
        sections: the sections of the algorithm's programs in epochs, in the order in
            which they ran; None if they are not kept.

    Args:
        learners: the virtual learners, in the order of their ranks.
        network: the model of how long messages take.
        crashes: function that makes the crashes, given the clock.
        stepped: function that is called with every step.
    """

    def __init__(
        self,
        learners: Sequence[VirtualLearner],
        network: Network,
        crashes: Callable[[Clock], Crashes],
        stepped: Callable[[Step], None],
    ) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock, network)
        self.gossip = VirtualGossip(self.clock, self.wire, self._receive)
        self.sides: list[Sides] = []
        self.sections: list[Section] | None = None
        self.in_epoch = False
        self.last: Side | None = None
        self._retired = 0
        self._learners = learners
        self._collectives = SimulatedCollectives(
            self.clock, network, self.wire, len(learners), self._count_bytes
        )
        self._crashes = crashes(self.clock)
        self._stepped = stepped

    def run(
        self, programs: Programs, after_event: Callable[[], None], in_epoch: bool
    ) -> list[Any]:
        """Run one training program for each learner until nothing is left to do.

        Args:
            programs: one program per rank, in the order of ranks.
            after_event: function that is called after every event.
            in_epoch: whether the programs train, so that their sections are kept.

        Returns:
            The values that the programs return, in the order of ranks.

        Raises:
            DeadlockError: learners wait for each other.
            PeerLostError: a learner has waited too long for one that has crashed.
        """
        self.in_epoch = in_epoch
        self._retired = 0
        self.sides = [
            Sides(
                Side(v.learner.rank, "training", program),
                Side(v.learner.rank, "gossip", None),
            )
            for v, program in zip(self._learners, programs, strict=True)
        ]
        for sides in self.sides:
            self._resume(sides.training)
        while self._tick():
            after_event()
        self._check_all_ended()
        return [sides.training.value for sides in self.sides]

    def _tick(self) -> bool:
        if self._crashes:
            self._crashes.notice(self._running())
        self.last = None
        return self.clock.tick()

    def _running(self) -> list[Side]:
        return [side for sides in self.sides for side in sides.running()]

    def _check_all_ended(self) -> None:
        if stuck := "; ".join(side.story() for side in self._running()):
            raise DeadlockError(
                f"at {self.clock.now / 1e9:g} s, these wait for ever: {stuck}"
            )

    # Programs

    def _resume(self, side: Side, result: Any = None, seconds: float = 0.0) -> None:
        side.waiting = False
        when = self.clock.later(seconds)
        self.clock.at(when, partial(self._advance, side, result))

    def _advance(self, side: Side, result: Any) -> None:
        """Run a program up to its next effect, and see to the effect."""
        if self._crashes.has(side.rank):
            return
        self.last = side
        if self.sections is not None and self._counts(side):
            decides = isinstance(side.effect, (AwaitStep, AwaitInvitation))
            self.sections.append((side.rank, side.name, result if decides else None))
        assert side.program is not None
        try:
            side.effect = side.program.send(result)
            while isinstance(side.effect, Published):  # takes no time
                self.sides[side.rank].published += 1
                self._wake(self.sides[side.rank])
                side.effect = side.program.send(None)
        except StopIteration as stop:
            side.ended, side.value = True, stop.value
        side.waiting, side.since = not side.ended, self.clock.now
        if side.name == "gossip":
            self._after_gossip(side)
        elif not side.ended:
            self._perform_training(side, side.effect)

    def _after_gossip(self, side: Side) -> None:
        """Perform the effect; wake the training side where it waits for its gossip."""
        training = self.sides[side.rank].training
        if training.waiting and isinstance(training.effect, AwaitGossip):
            self._resume(training)
        if not side.ended:
            self._perform_gossip(side, side.effect)
        elif training.waiting and isinstance(training.effect, StopGossip):
            self._resume(training)

    def _counts(self, side: Side) -> bool:
        """Return whether the code that `side` runs next counts as a section."""
        return self.in_epoch and side.in_algorithm

    # Effects

    def _perform_training(self, side: Side, effect: Any) -> None:
        sides = self.sides[side.rank]
        match effect:
            case Work(seconds):
                self._resume(side, seconds=seconds)
            case Stepped(loss):
                steps = self._learners[side.rank].learner.steps
                self._stepped(Step(self.clock.now / 1e9, side.rank, steps, loss))
                self._resume(side)
            case StartGossip(program):
                sides.gossip.program, sides.gossiping = program, True
                self._resume(sides.gossip)
                self._resume(side)
            case StopGossip():
                sides.ending = True
                self._wake(sides)
                if sides.gossip.ended:
                    self._resume(side)
            case Begin(collective):
                handle = Handle(collective)
                self._join(side, collective, handle.complete)
                self._resume(side, handle)
            case Wait(handle):
                handle.wait(partial(self._resume, side))
            case Collective() | Barrier():
                self._join(side, effect, partial(self._advance, side))
            case AwaitGossip():
                pass  # until the gossip side advances
            case _:
                raise TypeError(f"{effect} belongs in a gossip program")

    def _perform_gossip(self, side: Side, effect: Any) -> None:
        match effect:
            case AwaitStep() | AwaitInvitation():
                self._wake(self.sides[side.rank])
            case Invite(peer):
                self._mail(side.rank, peer, side.rank)
                self._resume(side)
            case Retire(actives, passives):
                self._retired += 1
                if self._retired == len(actives):
                    for peer in passives:
                        self._mail(side.rank, peer, None)
                self._resume(side)
            case RunInBackground(work):
                work()
                self._resume(side)
            case Exchange():
                self._exchange(side.rank, effect)
            case _:
                raise TypeError(f"{effect} does not belong in a gossip program")

    def _join(self, side: Side, collective: Any, done: Callable[[Any], None]) -> None:
        if not self._crashes.hit(collective):
            self._collectives.join(side.rank, collective, done)

    def _count_bytes(self, rank: int, nbytes: int) -> None:
        self._learners[rank].bytes_sent += nbytes

    # Gossip

    def _wake(self, sides: Sides) -> None:
        over, result = sides.answer()
        if over:
            self._resume(sides.gossip, result)

    def _mail(self, sender: int, receiver: int, mail: int | None) -> None:
        """Bring an invitation by `mail`, or the news that all actives have retired."""

        def arrive() -> None:
            sides.mailbox.append(mail)
            self._wake(sides)

        sides = self.sides[receiver]
        self.gossip.mail(sender, receiver, arrive)

    def _exchange(self, rank: int, effect: Exchange) -> None:
        if self._crashes.hit(effect):
            return
        nbytes = self.gossip.exchange(rank, effect)
        for end in (rank, effect.peer):
            self._count_bytes(end, nbytes)

    def _receive(self, rank: int, tensor: Tensor) -> None:
        self._advance(self.sides[rank].gossip, tensor)
