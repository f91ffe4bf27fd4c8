"""The bell of a learner: a port at which others find out whether its process lives.

Its machine refuses a connection to the port once the process is gone, so it need not
answer. But the kernel keeps each connection until it is accepted, and drops further
ones when it keeps too many: then a process that lives looks like a machine that is
slow. So the heartbeat's thread accepts them, and closes them at once.
"""

import contextlib
from typing import Any

from espnet_distopt.distributed.addresses import listen, own_address, store_address
from espnet_distopt.distributed.forks import private


class Bell:
    """Listens at a port of its own.

    Attributes:
        address: where others reach it, see `own_address`.

    Args:
        store: the store of all learners.
    """

    def __init__(self, store: Any) -> None:
        self._listener = private(listen())
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self.address = own_address(port, store_address(store))

    def answer(self) -> None:
        """Close the connections of all who have rung."""
        with contextlib.suppress(OSError):  # There is none, or it is broken already.
            while True:
                self._listener.accept()[0].close()

    def close(self) -> None:
        """Refuse connections from now on, as if the process were gone."""
        self._listener.close()
