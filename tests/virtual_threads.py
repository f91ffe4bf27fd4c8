"""Threads in virtual time: one goes on at a time, in an order that a seed decides.

So real code that waits (on a store, on others) runs through any schedule, thousands of
them in a minute, and each can be repeated.
"""

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Broken(Exception):
    """Another thread has failed, or all wait for ever."""


class VirtualThreads:
    """Runs functions side by side; time passes only in `sleep`.

    Args:
        pool: of as many threads as there will be functions, at least.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.now = 0.0
        self._pool = pool
        self._serial = itertools.count()
        self._due: list[tuple[float, int, threading.Lock]] = []
        self._blocked: set[threading.Lock] = set()
        self._turn = threading.local()
        self._broken = False

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return what the functions return, when all have."""
        turns = [_closed() for _ in functions]
        for turn in turns:
            self._push(0.0, turn)
        futures = [
            self._pool.submit(self._main, function, turn)
            for function, turn in zip(functions, turns, strict=True)
        ]
        self._next()
        errors = [error for f in futures if (error := f.exception()) is not None]
        causes = [error for error in errors if not isinstance(error, Broken)]
        for error in (*causes, *errors):
            raise error
        return [future.result() for future in futures]

    def _main(self, function: Callable[[], Any], turn: threading.Lock) -> Any:
        self._turn.own = turn
        self._await(turn)
        try:
            return function()
        except BaseException:
            self._broken = True
            raise
        finally:
            self._next()

    def sleep(self, seconds: float) -> None:
        """Let others go on until this time has passed."""
        turn = self._turn.own
        self._push(seconds, turn)
        if self._due[0][2] is turn:
            self.now, _, _ = heapq.heappop(self._due)
            return
        self._next()
        self._await(turn)

    def block(self) -> Callable[[], None]:
        """Return what `wait_until` waits for: the function that ends the wait."""
        turn = self._turn.own
        self._blocked.add(turn)

        def wake() -> None:
            self._blocked.remove(turn)
            self._push(0.0, turn)

        return wake

    def wait(self) -> None:
        """After `block`: let others go on until one has woken this one."""
        self._next()
        self._await(self._turn.own)

    def _push(self, seconds: float, turn: threading.Lock) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._serial), turn))

    def _next(self) -> None:
        """Give the turn to whoever is due; nobody, and some wait: they fail."""
        if not self._due:
            self._broken = self._broken or bool(self._blocked)
            for turn in self._blocked:
                self._push(0.0, turn)
            self._blocked.clear()
        if self._due:
            self.now, _, turn = heapq.heappop(self._due)
            turn.release()

    def _await(self, turn: threading.Lock) -> None:
        turn.acquire()
        if self._broken:
            raise Broken("another thread has failed, or all wait for each other")


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class Meeting:
    """Where a number of threads wait for each other, time and again."""

    def __init__(self, threads: VirtualThreads, size: int) -> None:
        self._threads = threads
        self.size = size
        self._here: list[tuple[Any, Callable[[], None]]] = []
        self._brought: list[Any] = []

    def barrier(self, thing: Any = None) -> list[Any]:
        """Return what all have brought."""
        if len(self._here) + 1 == self.size:
            self._brought = [*(other for other, _ in self._here), thing]
            for _, wake in self._here:
                wake()
            self._here = []
            return self._brought
        self._here.append((thing, self._threads.block()))
        self._threads.wait()
        return self._brought
