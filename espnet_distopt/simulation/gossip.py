"""Gossip in a simulation: mail between learners, and exchanges of tensors.

The passive end of an exchange decides: the one that offers first, because the active
end waits for it. It applies the exchange when it has the whole tensor, and says so to
the active end, which applies it then. So an exchange is applied at both ends or at
none, unless one of them dies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from espnet_distopt.core.effects import Exchange
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.wire import Wire

WhenUp = Callable[[int, Callable[[], None]], None]
"""A function that calls another one as soon as a learner is not silent."""


class Transfer(NamedTuple):
    """One end of an exchange that is under way.

    Attributes:
        received: what the peer has sent, and this learner will receive.
        sent: what this learner has sent.
        into: the tensor to which `received` will be written.
    """

    received: Tensor
    sent: Tensor
    into: Tensor


@dataclass(eq=False)
class Crossing:
    """The exchange of two learners whose tensors are under way.

    Attributes:
        active: the end that applies what it receives when it hears that the passive one
            has done so.
        passive: the end that decides.
        missing: how much the active end waits for: the tensor, and the word of the
            passive end that it has the other one.
    """

    active: int
    passive: int
    missing: int = 2


class VirtualGossip:
    """Brings mail and tensors to their receivers, in their time.

    Attributes:
        in_flight: for each rank that exchanges, what its exchange has not brought yet.
        dropped: the ends of exchanges that were dropped while tensors were under way:
            the rank, its peer, and what the exchange would have brought. A check may
            read and clear it.
    """

    def __init__(
        self,
        clock: Clock,
        wire: Wire,
        receive: Callable[[int, Tensor], None],
        when_up: WhenUp,
    ) -> None:
        self.in_flight: dict[int, Transfer] = {}
        self.dropped: list[tuple[int, int, Transfer]] = []
        self._clock = clock
        self._wire = wire
        self._receive = receive
        self._when_up = when_up
        self._offers: dict[int, Exchange] = {}
        self._crossings: dict[int, Crossing] = {}

    def mail(self, sender: int, receiver: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` when the mail does."""
        self._clock.at(self._wire.news(sender, receiver), arrive)

    def offers(self, rank: int, peer: int) -> bool:
        """Return whether `rank` waits for `peer` to exchange with it."""
        return rank in self._offers and self._offers[rank].peer == peer

    def exchange(self, rank: int, offer: Exchange) -> int:
        """Wait for the other end; then send copies both ways, each in its own time.

        Returns the bytes that each end sends: none yet while one end is missing.
        """
        self._offers[rank] = offer
        if not self.offers(offer.peer, rank):
            return 0
        answer = self._offers[offer.peer]
        passive, nbytes = offer.peer, offer.tensor.nbytes
        del self._offers[rank], self._offers[passive]
        ends = (rank, offer, answer), (passive, answer, offer)
        for end, own, other in ends:
            transfer = Transfer(other.tensor.clone(), sent=own.tensor, into=own.into)
            self.in_flight[end] = transfer
        crossing = Crossing(active=rank, passive=passive)
        self._crossings[passive] = self._crossings[rank] = crossing
        decide = partial(self._when_up, passive, partial(self._decide, crossing))
        self._wire.send(passive, rank, nbytes, partial(self._complete, crossing))
        self._wire.send(rank, passive, nbytes, decide)
        return nbytes

    def _decide(self, crossing: Crossing) -> None:
        """Apply the exchange at the end that decides, and tell the other end."""
        active, passive = crossing.active, crossing.passive
        if self._crossings.get(passive) is not crossing:
            return
        told = self._wire.news(passive, active)
        self._clock.at(told, partial(self._complete, crossing))
        self._deliver(passive, crossing)

    def _complete(self, crossing: Crossing) -> None:
        """Apply the exchange at the active end, if it has all."""
        crossing.missing -= 1
        if crossing.missing == 0:
            active = crossing.active
            self._when_up(active, partial(self._deliver, active, crossing))

    def _deliver(self, receiver: int, crossing: Crossing) -> None:
        if self._crossings.get(receiver) is crossing:
            del self._crossings[receiver]
            received, _, into = self.in_flight.pop(receiver)
            self._receive(receiver, into.copy_(received))

    def drop(self, rank: int) -> None:
        """Drop the exchange that `rank` waits in, because its peer is dead."""
        self._offers.pop(rank, None)
        crossing = self._crossings.pop(rank, None)
        if crossing is not None:
            peer = crossing.active + crossing.passive - rank
            self.dropped.append((rank, peer, self.in_flight.pop(rank)))

    def lose(self, rank: int) -> None:
        """Forget a learner that is dead: nothing is brought to it any more."""
        self._offers.pop(rank, None)
        self._crossings.pop(rank, None)
        self.in_flight.pop(rank, None)
