"""The process groups that this process has made, and when they are destroyed.

A group outlives its session: the learner that finishes first keeps its connections
open, because others may still be reading from them. Nobody is any more when all have
begun the next session, which destroys the groups, or when the process ends.

At the end of the process all groups are destroyed while Python still runs. A thread of
gloo drops the tensor of an operation when the operation is complete, and needs Python's
lock for that. It may be late, on a busy machine. If Python has begun to end by then, it
aborts the process. So the end waits for the threads of gloo. An error may have left
operations under way, which end when their connections are severed; but gloo forgets
some of them (see `waiter`), and then the process ends without its threads.
"""

import atexit
import ctypes
import logging
import os
import threading
from dataclasses import dataclass
from typing import Any

from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.nccl import NcclGroup
from espnet_distopt.distributed.waiter import GRACE


@dataclass
class Made:
    """A group that this process has made.

    Attributes:
        group: the group: a backend of `torch.distributed`, or an `NcclGroup`.
        connections: its connections.
        left: whether this learner has ended its session well.
    """

    group: Any
    connections: Connections
    left: bool = False


_made: list[Made] = []
"""The groups that are not destroyed."""

_JOIN = 30.0
"""Seconds for which the end of the process waits for the threads of gloo."""


class _Destroyer(threading.Thread):
    """Destroys the groups at the end of the process, when no thread can be started."""

    def __init__(self) -> None:
        super().__init__(name="distopt-destroyer", daemon=True)
        self._begin, self._done = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        self._begin.wait()
        _destroy(_made)
        self._done.set()

    def destroy(self, seconds: float) -> None:
        """Destroy the groups; return when that is done, or after some seconds."""
        self._begin.set()
        self._done.wait(seconds)


_destroyer: _Destroyer | None = None


def keep(group: Any, connections: Connections) -> Made:
    """Keep a group beyond its session, and return what is known of it."""
    global _destroyer
    _destroyer = _destroyer or _Destroyer()
    _made.append(Made(group, connections))
    return _made[-1]


def keep_for_ever() -> None:
    """Never destroy the groups, one of which has an operation that never ends.

    gloo's destructor would wait for the thread that carries it out.
    """
    for made in _made:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made.group))


def destroy_left() -> None:
    """Destroy the groups of the sessions that all learners have left.

    gloo's destructor waits for operations that an end within an epoch has left under
    way. They fail when another learner does the same. If gloo forgets one, the thread
    that waits for it is left behind.
    """
    left = [made for made in _made if made.left]
    _made[:] = [made for made in _made if not made.left]
    destroyer = threading.Thread(target=_destroy, args=(left,), daemon=True)
    destroyer.start()
    destroyer.join(GRACE)


def _destroy(groups: list[Made]) -> None:
    """Destroy groups, and remove them from the list."""
    while groups:
        made = groups.pop()
        if isinstance(made.group, NcclGroup):
            try:
                made.group.end(made.left)
            except RuntimeError as error:
                logging.warning(f"a group of NCCL did not end well: {error}")


@atexit.register
def _join_threads() -> None:
    # No variable of this thread may keep a group, which would be destroyed by it then.
    for connections in [made.connections for made in _made if _is_severed(made)]:
        connections.sever()
    if _destroyer is not None:
        _destroyer.destroy(_JOIN)


def _is_severed(made: Made) -> bool:
    """Return whether the end severs a group: one of NCCL may still have to send."""
    return not (made.left and isinstance(made.group, NcclGroup))


# A forked child has the groups without their threads.
os.register_at_fork(after_in_child=lambda: atexit.unregister(_join_threads))
