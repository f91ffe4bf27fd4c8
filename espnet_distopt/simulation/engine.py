"""The engine of a simulation: runs the programs of all learners, event by event.

One thread, one queue of events ordered by (integer nanoseconds, sequence number).
"""

from collections import deque
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
from espnet_distopt.core.protocols import (
    end_gossip,
    learner_name,
    retire,
)
from espnet_distopt.errors import PeerLostError
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.collective import (
    Done,
    Handle,
    Outcome,
    SimulatedCollectives,
)
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.gossip import VirtualGossip
from espnet_distopt.simulation.losses import Losses
from espnet_distopt.simulation.membership import VirtualMembers
from espnet_distopt.simulation.network import Network
from espnet_distopt.simulation.sides import Side, Sides
from espnet_distopt.simulation.virtual_learner import (
    Step,
    Stepped,
    VirtualLearner,
    Work,
)
from espnet_distopt.simulation.wire import Wire

Programs = Iterable[Generator[Any, Any, Any]]

Rejoin = Callable[[Sequence[int]], Sequence[Generator[Any, Any, Any]]]

Section = tuple[int, str, Any]
"""A rank, one of its sides, and what its program was sent, if that is a decision."""


class DeadlockError(RuntimeError):
    """Learners wait for each other for ever; the message says who waits for what."""


class Engine:
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
    """

    def __init__(
        self,
        learners: Sequence[VirtualLearner],
        network: Network,
        stepped: Callable[[Step], None],
        faults: Sequence[Fault] = (),
        silence: float = 30.0,
    ) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock, network)
        self.sides: list[Sides] = []
        self.sections: list[Section] | None = None
        self.in_epoch = False
        self.last: Side | None = None
        self._learners = learners
        self._stepped = stepped
        self._rejoin: Rejoin | None = None
        self._waiting_to_join: list[int] = []
        self._epoch = 0
        survives = bool(faults) and learners[0].algorithm.survives
        size = len(learners)
        lost = () if survives else faults
        self._losses = Losses(self.clock, size, lost, silence)
        self.members = VirtualMembers(
            self.clock, network, faults, silence, size, self._with, self, survives
        )
        self.gossip = VirtualGossip(
            self.clock, self.wire, self._receive, self.members.outages.when_up
        )
        self._actives: Sequence[int] = ()
        self._passives: set[int] = set()
        self._told: set[int] = set()
        self._meant: dict[int, tuple[int, int]] = {}
        self._collectives = SimulatedCollectives(
            self.clock,
            network,
            self.wire,
            lambda: self.members.now,
            lambda rank: survives and self.members.outages.down(rank),
            self._count_bytes,
        )

    def run(
        self,
        programs: Programs,
        after_event: Callable[[], None],
        in_epoch: bool,
        rejoin: Rejoin | None = None,
    ) -> list[Any]:
        """Run one training program for each member until nothing is left to do.

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

    def _resume(self, side: Side, result: Any = None, seconds: float = 0.0) -> None:
        side.waiting = False
        when = self.clock.later(seconds)
        self.clock.at(when, partial(self._advance, side, result))

    def _join(self, side: Side, collective: Any, done: Done) -> None:
        if not self._losses.hit(collective):
            self._collectives.join(side.rank, collective, done)

    def _go_on(self, side: Side, outcome: Outcome) -> None:
        """Advance a program by a collective's result, and its algorithm's members."""
        members = outcome.members
        if side.ended:
            return
        if members is not None and members.version > 0:
            virtual = self._learners[side.rank]
            if members.ranks != virtual.learner.members.ranks:
                virtual.algorithm.change_members(virtual.learner, members)
        self._advance(side, outcome.result)

    def _count_bytes(self, rank: int, nbytes: int) -> None:
        self._learners[rank].bytes_sent += nbytes

    # Gossip

    def _wake(self, sides: Sides) -> None:
        over, result = sides.answer()
        if over:
            if isinstance(sides.gossip.effect, AwaitInvitation) and result is not None:
                self._mean(sides.gossip.rank, result)
            self._resume(sides.gossip, result)

    def _mail(self, sender: int, receiver: int, mail: int | None) -> None:
        """Bring an invitation by `mail`, or the news that all actives have retired."""
        number = self.members.incarnation
        ends = number(sender), number(receiver)

        def arrive() -> None:
            new = ends != (number(sender), number(receiver))
            if mail is None or not (new or sender not in self.members.now.ranks):
                sides.mailbox.append(mail)
                self._wake(sides)

        sides = self.sides[receiver]
        self.gossip.mail(sender, receiver, arrive)

    def _await_end(self, rank: int, actives: Sequence[int]) -> None:
        """Let a passive learner hear of the end of the gossip, which may have come."""
        if rank not in self._passives:
            self._passives.add(rank)
            self._actives = actives
            self._look_for_end()

    def _look_for_end(self) -> None:
        store, waited_for = self.members.store, bool(self._passives)
        if waited_for and end_gossip(store, self._epoch, self._actives):
            self._tell_end()

    def _tell_end(self, sender: int | None = None) -> None:
        """Tell the living passive learners that the gossip is over."""
        new = self._passives.intersection(self.members.now.ranks) - self._told
        self._told |= new
        for peer in sorted(new):
            self._mail(peer if sender is None else sender, peer, None)

    def _mean(self, rank: int, peer: int) -> None:
        """Note which incarnation of `peer` the next exchange of `rank` is with."""
        self._meant[rank] = peer, self.members.incarnation(peer)

    def _gone(self, rank: int, peer: int) -> bool:
        """Return whether the peer of the exchange of `rank` is dead or replaced."""
        present = peer, self.members.incarnation(peer)
        replaced = self._meant.get(rank, present) != present
        return replaced or peer not in self.members.now.ranks

    def _exchange(self, rank: int, effect: Exchange) -> None:
        if self._losses.hit(effect):
            return
        if self._gone(rank, effect.peer):
            self._resume(self.sides[rank].gossip)
            return
        nbytes = self.gossip.exchange(rank, effect)
        for end in (rank, effect.peer):
            self._count_bytes(end, nbytes)
        self._answer(rank, effect.peer)

    def _answer(self, passive: int, active: int) -> None:
        """Let an active learner go on if the one that it has invited is ready."""
        inviter = self.sides[active].gossip
        invites = inviter.waiting and inviter.effect == Invite(passive)
        if invites and self.gossip.offers(passive, active):
            self._resume(inviter)

    def _receive(self, rank: int, tensor: Tensor) -> None:
        self._advance(self.sides[rank].gossip, tensor)

    # Members

    def _with(self, rank: int) -> tuple[int, ...]:
        virtual = self._learners[rank]
        return virtual.algorithm.lost_with(virtual.learner, rank)

    def exclude(self, ranks: Sequence[int]) -> None:
        """Go on without `ranks`, which are not members any more."""
        for rank in ranks:
            self.sides[rank].end()
            self.gossip.lose(rank)
        for sides in self.sides:
            kept = [mail for mail in sides.mailbox if mail not in ranks]
            sides.mailbox = deque(kept)
        self._collectives.lose(ranks)
        self._look_for_end()

    def learn(self, rank: int, members: bytes) -> None:
        """Let a learner read members; it drops an exchange with a dead one."""
        up = self.members.outages.when_up
        up(rank, partial(self._learn_now, rank, members, self.sides[rank]))

    def _learn_now(self, rank: int, members: bytes, sides: Sides) -> None:
        self.members.learners[rank].read(members)
        if sides is self.sides[rank]:
            self._catch_up(rank)
            self._drop_if_gone(sides.gossip)

    def _drop_if_gone(self, gossip: Side) -> None:
        exchanges = gossip.waiting and isinstance(gossip.effect, (Invite, Exchange))
        if exchanges and self._gone(gossip.rank, gossip.effect.peer):
            self.gossip.drop(gossip.rank)
            self._resume(gossip)

    def _catch_up(self, rank: int) -> None:
        """Tell a gossiping algorithm what its learner knows by now."""
        virtual = self._learners[rank]
        if self.members.now.version == 0 or not virtual.algorithm.wants_gossip:
            return
        known = self.members.learners[rank].members
        if known.version > virtual.learner.members.version:
            virtual.algorithm.change_members(virtual.learner, known)

    def returned(self, acts: Iterable[Callable[[], None]]) -> None:
        """Let a learner do what has waited for the end of its silence."""
        for act in acts:
            act()
        self._collectives.look_again()

    def join(self, rank: int) -> None:
        """Let a replacement of `rank` join, now or at the beginning of an epoch."""
        gossips = self._learners[rank].algorithm.wants_gossip
        if not gossips or not self.in_epoch:
            self._waiting_to_join.append(rank)
        elif ranks := self._admit(rank):
            assert self._rejoin is not None
            for joined, program in zip(ranks, self._rejoin(ranks), strict=True):
                training = Side(joined, "training", program)
                self.sides[joined] = Sides(training, Side(joined, "gossip", None))
                self._passives.discard(joined)
                self._resume(training)

    def _join_all(self) -> None:
        """Let those join who have come since the last epoch; all know of it."""
        waiting, self._waiting_to_join = self._waiting_to_join, []
        for rank in waiting:
            self._admit(rank)
        if waiting and self.members.survives:
            self.members.tell_now(self.members.now.ranks)
            for rank in self.members.now.ranks:
                self._catch_up(rank)

    def _admit(self, rank: int) -> tuple[int, ...]:
        """Let a replacement become a member; return the ranks that join with it.

        Nobody joins while the rank still is a member, or no member can answer. If the
        gossip of this epoch is over, it joins in the next one.
        """
        ranks, members, down = self._with(rank), self.members, self.members.outages.down
        if set(ranks) & set(members.now.ranks):
            return ()
        up = [other for other in members.now.ranks if not down(other)]
        if not up:
            members.join_later(rank)
            return ()
        nearest = min(up, key=lambda other: abs(other - rank))
        member = self._learners[self._with(nearest)[0]]
        steps = max(self._learners[joined].learner.steps for joined in ranks)
        if not members.admit(ranks, self._epoch):
            self._waiting_to_join.append(rank)
            return ()
        for joined in ranks:
            self._learners[joined].join(member, members.now, steps)
        return ranks
