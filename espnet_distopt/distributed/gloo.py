"""What gloo needs that it does not do by itself: where to listen, and waits that end.

gloo listens at the address of the machine's own name, unless GLOO_SOCKET_IFNAME names
an interface. Where the name means the loopback, as Debian writes it into /etc/hosts, no
other machine reaches it. The rendezvous store was reached, and so the address from
which this machine reaches the store is taken.

When a connection of gloo fails, every operation on it is to end with an error. But gloo
forgets some: a send that it is just writing, for one (`Pair::signalException` of its
TCP transport looks at bound buffers only). The wait for such an operation lasts for
ever, and nothing can cancel it. So a thread of its own waits for gloo. That thread is
left behind if the wait is in vain, because a learner is lost or has given the operation
up, and gloo does not say so.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch.distributed as dist

from espnet_distopt.distributed.addresses import (
    host_towards,
    is_loopback,
    named_host,
    outward_host,
    store_address,
)
from espnet_distopt.distributed.liveness import Liveness

INTERFACE = "GLOO_SOCKET_IFNAME"


def host_for_gloo(store: Any, machines: Callable[[], Sequence[str]]) -> str | None:
    """Return the address at which gloo must be told to listen.

    None if gloo finds one by itself, or the user has named the interface. `machines`
    returns the machines of all learners (`addresses.machine`); it may wait for them,
    and is called only if that decides.
    """
    if os.environ.get(INTERFACE) or not is_loopback(named_host()):
        return None
    at = store_address(store)
    own = host_towards(*at) if at else "127.0.0.1"
    if is_loopback(own):  # This machine keeps the store.
        if len(set(machines())) == 1:
            return None
        own = outward_host()
    return None if is_loopback(own) else own


def make_group(
    store: Any, rank: int, size: int, limit: timedelta, host: str | None
) -> Any:
    """Return a group of gloo, which connects its members before it returns.

    Args:
        store: a part of the store that no other group has.
        rank: this learner's place in the group.
        size: the number of its members.
        limit: the time that an operation may take.
        host: the address at which it listens (`host_for_gloo`).

    Raises:
        RuntimeError: the members cannot be connected; it says at which address this one
            listens, and how to name another.
    """
    try:
        how = _options(limit, host)
    except (AttributeError, TypeError) as error:
        logging.getLogger(__name__).warning(
            f"gloo listens where it likes, as torch has changed: {error}"
        )
        how = limit
    try:
        return dist.ProcessGroupGloo(store, rank, size, how)
    except RuntimeError as error:
        if "onnect" not in str(error):
            raise
        at = os.environ.get(INTERFACE) or host
        at = at or f"{named_host()}, which its name {socket.gethostname()} means"
        raise RuntimeError(
            f"{error} (this learner listens at {at}; {INTERFACE} names the interface "
            "by which the machines reach each other)"
        ) from error


def _options(limit: timedelta, host: str | None) -> Any:
    # With TORCH_GLOO_LAZY_INIT a group would connect later, and none could sever it.
    gloo: Any = dist.ProcessGroupGloo
    if names := os.environ.get(INTERFACE):
        devices = [
            gloo.create_device(interface=name, lazy_init=False)
            for name in names.split(",")
        ]
    elif host is not None:
        devices = [gloo.create_device(hostname=host, lazy_init=False)]
    else:
        devices = [gloo.create_default_device(lazy_init=False)]
    options = gloo._Options()
    options._timeout, options._devices = limit, devices
    options._threads = 2 * len(devices)  # as torch does
    return options


LOOK = 0.5
"""Seconds between two looks at whether a wait is in vain."""

GRACE = 1.0
"""Seconds for which gloo may end a wait that is in vain by itself."""

Vain = Callable[[], str | None]
"""Returns why it is in vain to wait any longer; None if it is not."""


def in_vain(liveness: Liveness, ranks: Sequence[int]) -> str | None:
    """Return why it is in vain to wait for `ranks`; None if they are members."""
    if liveness.lost is None and not set(ranks) <= set(liveness.members.ranks):
        return "the connection to a learner is closed"
    return liveness.lost


def _nothing() -> None:
    """Do nothing."""


class Job:
    """Operations that are waited for.

    When they are complete, `after` is called; then, or when one has failed by `error`,
    `ended` is set.
    """

    def __init__(self, works: Sequence[Any], after: Callable[[], None]) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._works, self._after = works, after
        self._lock, self._begun, self._abandoned = threading.Lock(), False, False

    def run(self) -> None:
        """Wait, on the waiter's thread."""
        try:
            for work in self._works:
                work.wait()
            with self._lock:
                self._begun = not self._abandoned
            if self._begun:
                self._after()
        except BaseException as error:
            self.error = error
        # `after` may hold the owner of this job. To drop it breaks that cycle, whose
        # tensors would live on until Python looks for cycles.
        self._works, self._after = (), _nothing
        self.ended.set()

    def abandon(self) -> bool:
        """Return False if `after` has begun; otherwise it never will."""
        with self._lock:
            self._abandoned = not self._begun
            return self._abandoned


class Waiter:
    """Waits for operations of gloo on a thread of its own.

    Cost: two switches between threads for each wait, about 0.05 ms. When a wait is left
    behind, `give_up` is called.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._thread: _Thread | None = None

    def wait(self, works: Sequence[Any], vain: Vain) -> None:
        """Wait until operations are complete, as `end` does."""
        self.end(self.begin(works), vain)

    def begin(self, works: Sequence[Any], after: Callable[[], None] = _nothing) -> Job:
        """Begin to wait for operations, behind those for which it waits already.

        When they are complete, `after` is called on the thread that waits.
        """
        job = Job(works, after)
        self._put(job)
        return job

    def end(self, job: Job, vain: Vain) -> None:
        """Wait until the operations of `job` are complete; ask `vain` twice a second.

        Raises:
            RuntimeError: an operation has failed, or cannot be completed.
        """
        while not job.ended.wait(LOOK):
            why = vain()
            if why is not None and not job.ended.wait(GRACE) and job.abandon():
                self._leave_behind(job)
                raise RuntimeError(why)
        if job.error is not None:
            raise job.error

    def close(self) -> None:
        """End the thread, unless it is in a wait that does not end."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.jobs.put(None)
            thread.join(GRACE)

    def _leave_behind(self, job: Job) -> None:
        """Leave the thread to its wait; another one goes on with the jobs behind it."""
        left, self._thread = self._thread, None
        self._give_up()
        if left is None:
            return
        with suppress(Empty):
            while (other := left.jobs.get_nowait()) is not None:
                if other is not job:
                    self._put(other)
        left.jobs.put(None)

    def _put(self, job: Job) -> None:
        if self._thread is None:
            self._thread = _Thread()
            self._thread.start()
        self._thread.jobs.put(job)


class _Thread(threading.Thread):
    """Waits for one job after the other, until it takes None."""

    def __init__(self) -> None:
        super().__init__(name="distopt-waiter", daemon=True)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()

    def run(self) -> None:
        for job in iter(self.jobs.get, None):
            job.run()
            del job  # Its operations keep their tensors.
