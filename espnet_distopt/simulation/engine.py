"""The engine of a simulation: runs the programs of all learners, event by event.

One thread, one queue of events ordered by (integer nanoseconds, sequence number).
"""

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

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
from espnet_distopt.core.protocols import learner_name, retire
from espnet_distopt.errors import PeerLostError
from espnet_distopt.simulation.collective import Handle
from espnet_distopt.simulation.meetings import Meetings, Rejoin, Section
from espnet_distopt.simulation.sides import Side, Sides
from espnet_distopt.simulation.virtual_learner import Step, Stepped, Work

__all__ = ["DeadlockError", "Engine", "Programs", "Rejoin", "Section"]

Programs = Iterable[Generator[Any, Any, Any]]


class DeadlockError(RuntimeError):
    """Learners wait for each other for ever; the message says who waits for what."""


class Engine(Meetings):
    """Advances both sides of each learner, and carries out their effects.

    Attributes:
        clock: the virtual clock.
        wire: the messages between learners.
        gossip: the mail and the exchanges between learners.
        members: the learners that live, and the faults that happen to them.
        sides: the two sides of each learner, in the programs that run or ran last.
        in_epoch: whether these programs train.
        last: the side that the last event has advanced; None if it advanced none.
        sections: the sections of the algorithm's programs in epochs, in the order in
            which they ran; None if they are not kept.

    Args:
        learners: the virtual learners, in the order of their ranks.
        network: the model of how long messages take.
        stepped: function that is called with every step.
        faults: what happens to learners.
        silence: the seconds after which a learner that is silent is given up.
    """

    def run(
        self,
        programs: Programs,
        after_event: Callable[[], None],
        in_epoch: bool,
        rejoin: Rejoin | None = None,
    ) -> list[Any]:
        """Run one training program for each member until nothing is left to do.

        Args:
            programs: one program per rank, in the order of ranks.
            after_event: function that is called after every event.
            in_epoch: whether the programs train, so that their sections are kept.
            rejoin: function that returns the programs of replacements.

        Returns:
            The values that the programs return, in the order of ranks; None for those
            that are no members.

        Raises:
            DeadlockError: learners wait for each other.
            PeerLostError: a learner has waited too long for one that is lost, or all
                learners are lost.
        """
        self.in_epoch, self._rejoin = in_epoch, rejoin
        self._passives.clear()
        self._told.clear()
        self._meant.clear()
        if in_epoch:
            self._epoch += 1
            self._join_all()
        self.sides = [
            Sides(
                Side(v.learner.rank, "training", program),
                Side(v.learner.rank, "gossip", None),
            )
            for v, program in zip(self._learners, programs, strict=True)
        ]
        for sides in self.sides:
            if sides.training.rank in self.members.now.ranks:
                self._resume(sides.training)
            else:
                sides.end()
        while self._tick():
            after_event()
        self._check_all_ended()
        return [sides.training.value for sides in self.sides]

    def _tick(self) -> bool:
        if self._losses:
            self._losses.notice(self._running())
        self.last = None
        return self.members.due(self.clock.next(), self._runs) or self.clock.tick()

    def _runs(self) -> bool:
        return any(sides.running() for sides in self.sides)

    def _running(self) -> list[Side]:
        return [side for sides in self.sides for side in sides.running()]

    def _check_all_ended(self) -> None:
        if not self.members.now.ranks:
            raise PeerLostError("all learners are lost")
        if stuck := "; ".join(side.story() for side in self._running()):
            raise DeadlockError(
                f"at {self.clock.now / 1e9:g} s, these wait for ever: {stuck}"
            )

    # Programs

    def _advance(self, side: Side, result: Any) -> None:
        """Run a program up to its next effect, and see to the effect."""
        if side.ended:
            return  # it was excluded
        outages = self.members.outages
        if outages.down(side.rank):
            outages.when_up(side.rank, partial(self._advance, side, result))
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
        self._catch_up(side.rank)
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
            return
        if self.members.now.version > 0:
            for sides in self.sides:
                self._drop_if_gone(sides.gossip)
        if training.waiting and isinstance(training.effect, StopGossip):
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
                virtual, seconds = self._learners[side.rank], self.clock.now / 1e9
                steps, sent = virtual.learner.steps, virtual.bytes_sent
                self._stepped(Step(seconds, side.rank, steps, loss, sent))
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
                handle.wait(partial(self._go_on, side))
            case Collective() | Barrier():
                self._join(side, effect, partial(self._go_on, side))
            case AwaitGossip():
                pass  # until the gossip side advances
            case _:
                raise TypeError(f"{effect} belongs in a gossip program")

    def _perform_gossip(self, side: Side, effect: Any) -> None:
        match effect:
            case AwaitStep():
                self._wake(self.sides[side.rank])
            case AwaitInvitation(actives):
                self._await_end(side.rank, actives)
                self._wake(self.sides[side.rank])
            case Invite(peer):
                self._mean(side.rank, peer)
                self._mail(side.rank, peer, side.rank)
                self._drop_if_gone(side)
                self._answer(peer, side.rank)
            case Retire(actives, passives):
                self._actives = actives
                self._passives.update(passives)
                own = learner_name(side.rank, self.members.incarnation(side.rank))
                if retire(self.members.store, self._epoch, own, actives):
                    self._tell_end(side.rank)
                self._resume(side)
            case RunInBackground(work):
                work()
                self._resume(side)
            case Exchange():
                self._exchange(side.rank, effect)
            case _:
                raise TypeError(f"{effect} does not belong in a gossip program")
