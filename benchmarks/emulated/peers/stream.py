"""The peer is the physical limit of gossip: a loop beside bare TCP, without averages.

Each learner trains by itself, and two threads beside it send zeros to a partner and
receive its zeros, as fast as the link carries them. What this costs the training is the
kernel's work for the network on the cores that all learners share. No method that keeps
the link busy can do with less.
"""

import socket
import threading

import torch.distributed as dist

from emulated.addresses import own_host
from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain

BUFFER = 1 << 22
"""The most bytes of one call to send or receive."""


class Stream:
    """A connection to a partner that is busy in both directions until the process ends.

    Args:
        connection: the connection.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.received = 0
        self._connection = connection
        for work in (self._send, self._receive):
            threading.Thread(target=work, daemon=True).start()

    def _send(self) -> None:
        zeros = bytes(BUFFER)
        try:
            while True:
                self._connection.sendall(zeros)
        except OSError:
            return  # The partner has ended first.

    def _receive(self) -> None:
        into = bytearray(BUFFER)
        # The call waits for a whole buffer, so that the thread seldom wakes up.
        while count := self._connection.recv_into(into, BUFFER, socket.MSG_WAITALL):
            self.received += count


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train beside a stream to the partner; the number of learners is even."""
    stream = Stream(_connect())
    nbytes = sum(weight.nbytes for weight in model.parameters())
    step = plain(model, method.optimizer(model.parameters()))
    return MeasuredTraining(step, exchanges=lambda: stream.received / nbytes)


def _connect() -> socket.socket:
    """Return a connection to the partner: learner 1 of 0, 0 of 1, 3 of 2 and so on."""
    rank = dist.get_rank()
    listener = socket.create_server((own_host(), 0))
    places: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
    dist.all_gather_object(places, listener.getsockname())
    with listener:
        if rank % 2:
            return socket.create_connection(places[rank - 1])
        return listener.accept()[0]
