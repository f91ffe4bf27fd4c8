"""Waits for sockets that any thread of this process can end."""

import os
import select
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

Check = Callable[[], None]
"""Raises an error if a wait has become pointless."""


class WakeUp:
    """One thread's waits for sockets, which other threads interrupt by `wake`.

    A byte in a pipe to itself ends the wait, so that a wake-up between two waits is not
    lost.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._lock, self._closed = threading.Lock(), False

    def wake(self) -> None:
        """End the wait that is under way, or the next one. Any thread may call this."""
        with self._lock, suppress(BlockingIOError):  # It may be full of earlier calls.
            if not self._closed:
                os.write(self._writer, b"!")

    def until_ready(
        self,
        reading: Collection[socket.socket],
        writing: Collection[socket.socket] = (),
        seconds: float | None = None,
    ) -> set[int]:
        """Wait until a socket is ready, `wake` is called, or `seconds` have passed.

        Returns the descriptors of those sockets that can be read or written, or that
        have failed: the next operation on such a socket says how.

        Args:
            reading: the sockets to read from.
            writing: the sockets to write to.
            seconds: the time limit; None means none.
        """
        poll = select.poll()
        for each in {*reading, *writing}:
            read = select.POLLIN if each in reading else 0
            poll.register(each, read | (select.POLLOUT if each in writing else 0))
        poll.register(self._reader, select.POLLIN)
        events = poll.poll(None if seconds is None else 1000 * seconds)
        ready = {descriptor for descriptor, _ in events}
        if self._reader in ready:
            self._drain()
        return ready - {self._reader}

    def _drain(self) -> None:
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the pipe: nothing waits any more, and `wake` does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._reader)
                os.close(self._writer)
