"""Gossip in a simulation: mail between learners, and exchanges of tensors.

The end of an exchange that offers last, which is the passive one, decides. It applies
the exchange when it has the whole tensor, and says so to the other end, which applies
it then. So an exchange is applied at both ends or at none, unless one of them dies.
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
        first: the end that has offered first; it applies what it receives when it
            hears that the last one has.
        last: the end that decides.
        missing: how much the first end waits for: the tensor, and the word of the last
            end that it has the other one.
    """

    first: int
    last: int
    missing: int = 2


class VirtualGossip:
    """Brings mail and tensors to their receivers, in their time.

    Attributes:
        in_flight: for each rank that exchanges, what its exchange has not brought yet.
        dropped: the ends of exchanges that were dropped while tensors were under way:
            the rank, its peer, and what the exchange would have brought. A check may
            read and clear it.

    Args:
        clock: the virtual clock.
        wire: the messages between learners.
        receive: function that is called with a rank and what an exchange has brought.
        when_up: function by which a silent learner receives nothing until it returns.
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
        self._last_mail: dict[tuple[int, int], int] = {}

    def mail(self, sender: int, receiver: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` when the mail does; a pair's mails do not overtake."""
        pair = sender, receiver
        when = max(self._wire.news(sender, receiver), self._last_mail.get(pair, 0))
        self._last_mail[pair] = when
        self._clock.at(when, arrive)

    def exchange(self, rank: int, offer: Exchange) -> int:
        """Wait for the other end; then send copies both ways, each in its own time.

        Returns the bytes that each end sends: none yet while one end is missing.
        """
        self._offers[rank] = offer
        answer = self._offers.get(offer.peer)
        if answer is None or answer.peer != rank:
            return 0
        first, nbytes = offer.peer, offer.tensor.nbytes
        del self._offers[rank], self._offers[first]
        ends = (rank, offer, answer), (first, answer, offer)
        for end, own, other in ends:
            transfer = Transfer(other.tensor.clone(), sent=own.tensor, into=own.into)
            self.in_flight[end] = transfer
        crossing = Crossing(first, rank)
        self._crossings[first] = self._crossings[rank] = crossing
        decide = partial(self._when_up, rank, partial(self._decide, crossing))
        self._wire.send(rank, first, nbytes, partial(self._complete, crossing))
        self._wire.send(first, rank, nbytes, decide)
        return nbytes

    def _decide(self, crossing: Crossing) -> None:
        """Apply the exchange at the end that decides, and tell the other end."""
        first, last = crossing.first, crossing.last
        if self._crossings.get(last) is not crossing:
            return
        told = self._wire.news(last, first)
        self._clock.at(told, partial(self._complete, crossing))
        self._deliver(last, crossing)

    def _complete(self, crossing: Crossing) -> None:
        """Apply the exchange at the end that has offered first, if it has all."""
        crossing.missing -= 1
        if crossing.missing == 0:
            first = crossing.first
            self._when_up(first, partial(self._deliver, first, crossing))

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
            peer = crossing.first + crossing.last - rank
            self.dropped.append((rank, peer, self.in_flight.pop(rank)))

    def lose(self, rank: int) -> None:
        """Forget a learner that is dead: nothing is brought to it any more."""
        self._offers.pop(rank, None)
        self._crossings.pop(rank, None)
        self.in_flight.pop(rank, None)
