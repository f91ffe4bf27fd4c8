"""A process that a learner forks keeps no copy of the learner's connections.

A process that is forked without `exec`, as a DataLoader's worker is, has copies of all
descriptors of its parent. A connection is closed, and a port refuses, only when the
last copy is closed. So the peers of a learner that is killed would not notice before
its workers do, and those look for their parent every five seconds. Therefore the child
gives its copies up as soon as it is forked; the connections stay as they are.

The copies are not closed, but replaced by /dev/null. torch's objects in the child still
refer to the descriptors and may close them later. If the numbers were free, they might
belong to other files by then.
"""

import os
import socket
from collections.abc import Iterable
from typing import Protocol
from weakref import WeakSet


class Holder(Protocol):
    """Holds connections that belong to this process alone."""

    def descriptors(self) -> Iterable[int]:
        """Return the file descriptors of the connections."""


_holders: WeakSet[Holder] = WeakSet()
_sockets: WeakSet[socket.socket] = WeakSet()


def private(connection: socket.socket) -> socket.socket:
    """Return a socket that processes which are forked from now on give up."""
    _sockets.add(connection)
    return connection


def hold(holder: Holder) -> None:
    """Let processes that are forked from now on give up what `holder` holds."""
    _holders.add(holder)


def _give_up() -> None:
    """Release the copies of this process, which was just forked."""
    found = {each.fileno() for each in _sockets} - {-1}
    found.update(*(holder.descriptors() for holder in _holders))
    if not found:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in found:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_give_up)
