"""Exchanges between two learners, over one TCP connection of their own for each pair.

No connection is shared by more than the two who talk, so that the death of a learner
breaks its own pairs and no other. (A gloo group fails as a whole.) Every learner
listens on a port; an active one connects to a passive one when it first invites it.

An exchange of Anna (active) and Ben (passive):

    1. Anna sends INVITE and waits.
    2. Ben's thread is free. He sends DATA and his tensor. With the first bytes from
       Ben, Anna begins to send hers.
    3. Anna has Ben's whole tensor. She sends RECEIVED.
    4. Ben has Anna's whole tensor and her RECEIVED. He decides: he sends COMMIT, and
       applies the exchange.
    5. Anna gets COMMIT, and applies the exchange.

An exchange is applied at both ends or at none, although a connection may break at any
moment:

    If it breaks before Anna has sent RECEIVED, Ben cannot have decided to apply it, and
    both drop the exchange.

    If it breaks between steps 3 and 5, Anna cannot know what Ben has decided. He
    notices the break when he next waits for an invitation, or for a step of his own,
    and writes his last verdict to the store, where Anna waits for it.

    If Ben dies then, Anna waits until he is no member any more, and drops the exchange:
    what he may have applied is lost with him.

A learner whose lease is over (see `liveness`) may not be a member any more without
knowing it. So Ben does not decide to apply an exchange without a lease, and Anna waits
for hers before she applies one.
"""

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Collection

from espnet_distopt.core.protocols import learner_name
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.addresses import listen_for, reachable
from espnet_distopt.distributed.channel import Channel, Check, Header, Kind, WakeUp
from espnet_distopt.distributed.connections import private
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.watch import Watch

CONNECT = 5.0
"""The most seconds that a connection may take to be made."""

TOKEN = 16
"""Bytes of the token, which tells learners of one run from strangers."""

_HELLO = struct.Struct(f"<{TOKEN}sII")


def token_of(watch: Watch) -> bytes:
    """Return the token of this run; the first learner that asks makes it."""
    made = os.urandom(TOKEN // 2).hex()
    return bytes(watch.store.compare_set(keys.TOKEN, "", made))


class PeerListener:
    """Makes and accepts the connections between learners, on the gossip thread.

    Whoever connects says first the token of this run, its rank and its incarnation.
    """

    def __init__(self, liveness: Liveness, watch: Watch, wakeup: WakeUp) -> None:
        self._liveness = liveness
        self._watch = watch
        self._wakeup = wakeup
        self._listener, address = listen_for(watch.store)
        self._strangers: list[socket.socket] = []
        key = keys.address(liveness.membership.name(liveness.rank))
        with watch.asking("publishing this learner's address"):
            self._token = token_of(watch)
            watch.store.set(key, address)

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets to wait for, before `admit`."""
        return [self._listener, *self._strangers]

    def admit(self, ready: Collection[int]) -> list[tuple[int, socket.socket]]:
        """Return the ranks and the connections of members that have connected.

        `ready` are the descriptors of sockets that can be read.
        """
        admitted = []
        for stranger in [s for s in self._strangers if s.fileno() in ready]:
            self._strangers.remove(stranger)
            rank = self._rank_of(stranger)
            if rank is None:
                stranger.close()
            else:
                admitted.append((rank, stranger))
        if self._listener.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                stranger, _ = self._listener.accept()
                stranger.setblocking(False)
                self._strangers.append(private(stranger))
        return admitted

    def _rank_of(self, stranger: socket.socket) -> int | None:
        """Return the rank of a member of this run; None if it is nobody of ours."""
        try:
            token, rank, incarnation = _HELLO.unpack(stranger.recv(_HELLO.size))
        except (OSError, struct.error):
            return None
        live = self._liveness
        known = rank in live.members.ranks and token == self._token
        return rank if known and incarnation == self._incarnation(rank) else None

    def connect(self, peer: int, check: Check) -> socket.socket:
        """Connect to the member `peer`, and say who is connecting.

        Raises:
            OSError: `peer` cannot be reached.
        """
        key = keys.address(self._liveness.membership.name(peer))
        with self._watch.asking(f"connecting to learner {peer}"):
            host, port = reachable(self._watch.store.get(key).decode())
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = private(socket.socket(family, socket.SOCK_STREAM))
        connection.setblocking(False)
        try:
            self._await_connection(connection, (host, port), check)
            rank = self._liveness.rank
            hello = _HELLO.pack(self._token, rank, self._incarnation(rank))
            connection.send(hello)  # An empty buffer takes it at once.
        except BaseException:
            connection.close()
            raise
        return connection

    def _await_connection(
        self, connection: socket.socket, target: tuple[str, int], check: Check
    ) -> None:
        error = connection.connect_ex(target)
        deadline = time.monotonic() + CONNECT
        while error == errno.EINPROGRESS:
            left = deadline - time.monotonic()
            if left < 0:
                raise TimeoutError(f"{target} has not answered for {CONNECT:.0f} s")
            if self._wakeup.until_ready([], [connection], left):
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            check()
        if error:
            raise OSError(error, f"connecting to {target}: {os.strerror(error)}")

    def _incarnation(self, rank: int) -> int:
        return self._liveness.membership.incarnation(rank)

    def close(self) -> None:
        """Stop listening: connections are refused from now on."""
        for each in self.sockets:
            each.close()


ASK = 0.02
"""Seconds between two looks for a verdict in the store."""


class DroppedError(Exception):
    """The peer is no member any more, so that an exchange with it is pointless."""


class Pairs:
    """The connections of a learner for exchanges; its gossip thread uses them.

    Attributes:
        wakeup: ends the gossip thread's waits, for example when the members change.
    """

    def __init__(self, liveness: Liveness, watch: Watch) -> None:
        self.wakeup = WakeUp()
        self._liveness = liveness
        self._watch = watch
        self._peer_listener = PeerListener(liveness, watch, self.wakeup)
        self._invited: dict[int, Channel] = {}
        self._inviting: dict[int, Channel] = {}
        self._peer, self._incarnation = -1, 0  # Of the exchange under way, or the last.
        self._exchange: tuple[Channel, int, bool] | None = None
        self._count = 0
        liveness.listeners.append(self.wakeup.wake)
        liveness.alarms.append(self.wakeup.wake)

    def close(self) -> None:
        """Close all connections."""
        for channel in (*self._invited.values(), *self._inviting.values()):
            channel.close()
        self._peer_listener.close()

    # The active side

    def invite(self, peer: int, epoch: int) -> None:
        """Ask `peer` for an exchange, and wait until it begins to send its tensor.

        If that fails, `swap` drops the exchange.

        Raises:
            PeerLostError: the run has ended, or goes on without this learner.
        """
        self._count += 1
        self._turn_to(peer)
        self._liveness.await_lease()
        try:
            channel = self._invited.get(peer)
            if channel is None or channel.incarnation != self._incarnation:
                self._break(peer, None)  # It leads to one that has been replaced.
                connection = self._peer_listener.connect(peer, self._check)
                self._invited[peer] = channel = self._channel(connection, peer)
            channel.send(Header(Kind.INVITE, epoch, self._count))
            channel.await_reply()
        except DroppedError:
            self._break(peer, None)
            return
        except OSError as error:
            self._break(peer, error)
            return
        self._exchange = channel, self._count, True

    # The passive side

    def await_invitation(self, epoch: int) -> int | None:
        """Return the rank that has invited this learner; None after a wake-up.

        Of several invitations that have come, one of the learner whose last one is
        longest ago is taken; the others stay in their connections.
        """
        channels = {c.connection.fileno(): p for p, c in self._inviting.items()}
        waiting = [c.connection for c in self._inviting.values()]
        ready = self.wakeup.until_ready([*self._peer_listener.sockets, *waiting])
        for rank, connection in self._peer_listener.admit(ready):
            if rank in self._inviting:  # Its earlier connection was broken.
                self._end(rank, None)
            self._inviting[rank] = self._channel(connection, rank)
        calling = [channels[descriptor] for descriptor in ready & channels.keys()]
        calling = [peer for peer in calling if peer in self._inviting]
        if not calling:
            return None
        peer = min(calling, key=lambda each: (self._inviting[each].used, each))
        return peer if self._read_invitation(peer, epoch) else None

    def _read_invitation(self, peer: int, epoch: int) -> bool:
        channel = self._inviting[peer]
        self._turn_to(peer)
        try:
            header = channel.receive()
            if (header.kind, header.epoch) != (Kind.INVITE, epoch):
                raise ConnectionError(f"expected an invitation, and received {header}")
        except DroppedError:
            self._end(peer, None)
            return False
        except OSError as error:
            self._end(peer, error)
            return False
        channel.verdict = None  # The peer goes on, and so has had it.
        self._count += 1
        channel.used = self._count
        self._exchange = channel, header.number, False
        return True

    def settle(self) -> None:
        """Close the connections that have broken since, and write their verdicts.

        Their peers may have died, or may wait for a verdict before this learner can
        make a step, as it does in a barrier of the training loop, where it answers
        nobody.
        """
        broken = ConnectionError("it was closed")
        for peer, channel in tuple(self._inviting.items()):
            if channel.is_broken():
                self._end(peer, broken)
        for peer, channel in tuple(self._invited.items()):
            if channel.is_broken():
                self._break(peer, broken)

    def _end(self, peer: int, error: OSError | None) -> None:
        """Close the connection of a peer that may not have heard of a verdict.

        It may have died if there is an error.
        """
        channel = self._inviting.pop(peer)
        channel.close()
        if error is not None:
            self._liveness.suspect([peer], f"its connection has failed: {error}")
        if channel.verdict is not None:
            number, verdict = channel.verdict
            with self._watch.asking("the verdict on an exchange"):
                active = learner_name(peer, channel.incarnation)
                key = keys.verdict(active, number)
                self._watch.store.set(key, verdict.name)

    # Both sides

    def swap(self, epoch: int, sent: memoryview, received: memoryview) -> bool:
        """Exchange tensors of the same size with the peer of the last invitation.

        Returns whether the exchange is to be applied; if not, `received` has any
        content.

        Raises:
            PeerLostError: the run has ended, or goes on without this learner.
        """
        if self._exchange is None:
            return False
        channel, number, active = self._exchange
        self._exchange = None
        header = Header(Kind.DATA, epoch, number, len(sent))
        if active:
            return self._swap_as_active(channel, header, sent, received)
        return self._swap_as_passive(channel, header, sent, received)

    def _swap_as_active(
        self, channel: Channel, header: Header, sent: memoryview, received: memoryview
    ) -> bool:
        peer, asked = self._peer, False
        try:
            channel.swap(header, sent, received)
            asked = True
            channel.send(header._replace(kind=Kind.RECEIVED))
            verdict = channel.receive().kind
        except DroppedError:
            self._break(peer, None)
            return False
        except OSError as error:
            self._break(peer, error)
            verdict = self._ask_for_verdict(peer, header) if asked else Kind.ABORT
        self._liveness.await_lease()
        return verdict is Kind.COMMIT

    def _swap_as_passive(
        self, channel: Channel, header: Header, sent: memoryview, received: memoryview
    ) -> bool:
        peer, verdict = self._peer, Kind.ABORT
        channel.verdict = header.number, verdict
        try:
            channel.swap(header, sent, received)
            if channel.receive().kind is not Kind.RECEIVED:
                raise ConnectionError("the peer did not confirm the exchange")
            self._check()
            verdict = Kind.COMMIT if self._liveness.has_lease() else Kind.ABORT
            channel.verdict = header.number, verdict
            channel.send(header._replace(kind=verdict))
        except DroppedError:
            self._end(peer, None)
        except OSError as error:
            self._end(peer, error)
        return verdict is Kind.COMMIT

    def _ask_for_verdict(self, peer: int, header: Header) -> Kind:
        """Wait until the store has the peer's verdict, or the peer is lost."""
        own = self._liveness.membership.name(self._liveness.rank)
        key = keys.verdict(own, header.number)
        while True:
            with self._watch.asking("the verdict on an exchange"):
                if self._watch.store.check([key]):
                    return Kind[self._watch.store.get(key).decode()]
            try:
                self._check()
            except DroppedError:
                return Kind.ABORT
            self.wakeup.until_ready([], [], ASK)

    def _break(self, peer: int, error: OSError | None) -> None:
        """Close the connection to `peer`, which may have died if there is an error."""
        if peer in self._invited:
            self._invited.pop(peer).close()
        if error is not None:
            self._liveness.suspect([peer], f"its connection has failed: {error}")

    def _channel(self, connection: socket.socket, peer: int) -> Channel:
        live = self._liveness
        number = live.membership.incarnation(peer)
        return Channel(connection, self.wakeup, self._check, live.silence, number)

    def _turn_to(self, peer: int) -> None:
        """Begin with another peer, with which no exchange is under way yet."""
        self._incarnation = self._liveness.membership.incarnation(peer)
        self._peer, self._exchange = peer, None

    def _check(self) -> None:
        """Raise if a wait for the current peer has become pointless.

        Raises:
            DroppedError: the peer is no member any more, or was replaced.
            PeerLostError: the run has ended, or goes on without this learner.
        """
        self._watch.check("an exchange")
        live = self._liveness
        replaced = live.membership.incarnation(self._peer) != self._incarnation
        if replaced or self._peer not in live.members.ranks:
            raise DroppedError
