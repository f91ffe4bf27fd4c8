"""The bell of a learner: a port at which others find out whether its process lives.

Its machine refuses a connection to the port once the process is gone, so it need not
answer. But the kernel keeps each connection until it is accepted, and drops further
ones when it keeps too many: then a process that lives looks like a machine that is
slow. So the heartbeat's thread accepts them, and closes them at once.

A bell stays from session to session: a process that has left one may begin another.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from espnet_distopt.distributed.addresses import listen_for


class Bell:
    """Listens at a port of its own.

    Attributes:
        address: where others reach it, see `own_address`.

    Args:
        store: the store of all learners.
    """

    def __init__(self, store: Any) -> None:
        self._listener, self.address = listen_for(store)

    def answer(self) -> None:
        """Close the connections of all who have rung."""
        with contextlib.suppress(OSError):  # There is none, or it is broken already.
            while True:
                self._listener.accept()[0].close()

    def close(self) -> None:
        """Refuse connections from now on, as if the process were gone."""
        self._listener.close()


class Bells(NamedTuple):
    """Where processes are asked for in a session.

    Attributes:
        own: the bell of this process.
        before: rank -> the address of another one's bell, in the session before; empty
            if this is the first one.
    """

    own: Bell
    before: Mapping[int, str]
