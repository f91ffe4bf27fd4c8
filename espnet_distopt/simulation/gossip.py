"""Gossip in a simulation: mail between learners, and exchanges of tensors."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from espnet_distopt.core.effects import Exchange
from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.wire import Wire


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


class VirtualGossip:
    """Brings mail and tensors to their receivers, in their time.

    Attributes:
        in_flight: for each rank that exchanges, what its exchange has not brought yet.

    Args:
        clock: the virtual clock.
        wire: the arrival of messages between learners.
        receive: function that is called with a rank and what an exchange has brought.
    """

    def __init__(
        self, clock: Clock, wire: Wire, receive: Callable[[int, Tensor], None]
    ) -> None:
        self.in_flight: dict[int, Transfer] = {}
        self._clock = clock
        self._wire = wire
        self._receive = receive
        self._offers: dict[int, Exchange] = {}
        self._last_mail: dict[tuple[int, int], int] = {}

    def mail(self, sender: int, receiver: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` when the mail does; a pair's mails do not overtake."""
        pair = sender, receiver
        when = max(
            self._wire.arrival(sender, receiver, 0), self._last_mail.get(pair, 0)
        )
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
        del self._offers[rank], self._offers[offer.peer]
        self._send(offer.peer, answer.tensor, offer=offer, receiver=rank)
        self._send(rank, offer.tensor, offer=answer, receiver=offer.peer)
        return offer.tensor.nbytes

    def _send(
        self, sender: int, tensor: Tensor, offer: Exchange, receiver: int
    ) -> None:
        transfer = Transfer(tensor.clone(), sent=offer.tensor, into=offer.into)
        self.in_flight[receiver] = transfer
        when = self._wire.arrival(sender, receiver, tensor.nbytes)
        self._clock.at(when, partial(self._deliver, receiver))

    def _deliver(self, receiver: int) -> None:
        received, _, into = self.in_flight.pop(receiver)
        self._receive(receiver, into.copy_(received))
