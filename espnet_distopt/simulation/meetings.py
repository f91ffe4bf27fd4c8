"""Meetings: the engine's part in which learners meet, die, and are replaced.

Learners meet in exchanges and in collectives. What a meeting needs of a learner that
has died is dropped, or repeated without it.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from espnet_distopt.core.effects import AwaitInvitation, Exchange, Invite
from espnet_distopt.core.protocols import end_epoch, end_gossip, read_members
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.collective import Done, Outcome, SimulatedCollectives
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.gossip import VirtualGossip
from espnet_distopt.simulation.losses import Losses
from espnet_distopt.simulation.membership import VirtualMembers
from espnet_distopt.simulation.network import Network
from espnet_distopt.simulation.sides import Side, Sides
from espnet_distopt.simulation.virtual_learner import Step, VirtualLearner
from espnet_distopt.simulation.wire import Wire

Rejoin = Callable[[Sequence[int]], Sequence[Generator[Any, Any, Any]]]

Section = tuple[int, str, Any]
"""A rank, one of its sides, and what its program was sent, if that is a decision."""


class Meetings(ABC):
    """The state of an engine, and how its learners meet; see `engine.Engine`."""

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
            self._close_epoch,
        )

    @abstractmethod
    def _advance(self, side: Side, result: Any) -> None:
        """Run a program up to its next effect, and see to the effect."""

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

    def _close_epoch(self) -> None:
        """Let nobody join an epoch any more at whose end all have met."""
        store = self.members.store
        end_epoch(store, read_members(store), self._epoch)

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
        if sides is not self.sides[rank]:
            return
        self._catch_up(rank)
        gossip = sides.gossip
        self._drop_if_gone(gossip)

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
        if waiting:
            self.members.tell_now(self.members.now.ranks)
            for rank in self.members.now.ranks:
                self._catch_up(rank)

    def _admit(self, rank: int) -> tuple[int, ...]:
        """Let a replacement become a member; return the ranks that join with it.

        Nobody joins while the rank still is a member, or no member can answer. If the
        gossip of this epoch is over, it joins in the next one.
        """
        ranks, up = (
            self._with(rank),
            [
                other
                for other in self.members.now.ranks
                if not self.members.outages.down(other)
            ],
        )
        if set(ranks) & set(self.members.now.ranks):
            return ()
        if not up:
            self.members.join_later(rank)
            return ()
        nearest = min(up, key=lambda other: abs(other - rank))
        member = self._learners[self._with(nearest)[0]]
        steps = max(self._learners[joined].learner.steps for joined in ranks)
        if not self.members.admit(ranks, self._epoch):
            self._waiting_to_join.append(rank)
            return ()
        for joined in ranks:
            self._learners[joined].join(member, self.members.now, steps)
        return ranks
