"""The end of a run for one process: why it ends, and how all of its waits end then."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from espnet_distopt.distributed.addresses import store_address
from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.suspects import PROBE


class Ending:
    """Why the run ends for this process, if it does; that ends every wait in it.

    Attributes:
        port: the port of the store; None if it is not a TCP store.
        connections: the driver's connections, which are severed when the run ends.
        store_waits: the connections to the store on which threads are waiting now.
        alarms: functions that are called, on any thread, when the run ends.
        lost: why the run ends for this learner, in words; None as long as it does not.

    Args:
        store: the store of all learners.
    """

    def __init__(self, store: Any) -> None:
        address = store_address(store)
        self.port = address and address[1]
        self.connections = Connections(self.port)
        self.store_waits: list[Connections] = []
        self.alarms: list[Callable[[], None]] = []
        self.lost: str | None = None
        self._noted = threading.Event()

    def pause(self) -> None:
        """Wait for a moment, or until the run ends."""
        self._noted.wait(PROBE)

    def note(self, reason: str) -> None:
        """Note the reason, unless there is an earlier one, and end every wait."""
        if self.lost is None:
            self.lost = reason
            self._noted.set()
            self.end_waits()
            for alarm in tuple(self.alarms):
                alarm()

    def end_waits(self) -> None:
        """End the waits of all threads for other learners and for the store."""
        self.connections.sever()
        for wait in tuple(self.store_waits):
            wait.sever()

    def wait_for_note(self, seconds: float) -> str | None:
        """Return who is lost and why, as soon as that is known.

        Returns None if no learner is lost after `seconds`.
        """
        self._noted.wait(seconds)
        return self.lost

    @contextmanager
    def waiting(self, store: Connections) -> Generator[None, None, None]:
        """Mark this learner as waiting for others in the store, inside.

        Meanwhile a learner that has left counts as lost, because it will not come.

        Args:
            store: the waiting thread's connection to the store.
        """
        self.store_waits.append(store)
        try:
            yield
        finally:
            self.store_waits.remove(store)
