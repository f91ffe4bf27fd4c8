"""The process groups that this process has made, and when they are destroyed.

A group outlives its session: the learner that finishes first keeps its connections
open, because others may still be reading from them. Nobody is any more when all have
begun the next session, which destroys the groups, or when the process ends.
"""

import atexit
import ctypes
import faulthandler
import os
import threading
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.waiter import GRACE


@dataclass
class Made:
    """A group that this process has made.

    Attributes:
        group: the group, a backend of `torch.distributed`.
        connections: its connections.
        left: whether this learner has ended its session well.
    """

    group: Any
    connections: Connections
    left: bool = False


_made: list[Made] = []
"""The groups that are not destroyed."""

_JOIN = 5.0
"""Seconds for which the end of the process waits for gloo's threads. An operation that
gloo has forgotten (see `waiter`) never ends."""


def keep(group: Any, connections: Connections) -> Made:
    """Keep a group beyond its session, and return what is known of it."""
    _made.append(Made(group, connections))
    return _made[-1]


def keep_for_ever() -> None:
    """Never destroy the groups, one of which has an operation that never ends.

    gloo's destructor would wait for the thread that carries it out.
    """
    for made in _made:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made.group))


def destroy_left() -> None:
    """Destroy the groups of gloo of the sessions that all learners have left.

    gloo's destructor waits for operations that an end within an epoch has left under
    way. They fail when another learner does the same. If gloo forgets one, the thread
    that waits for it is left behind.
    """
    left = [made for made in _made if made.left and _is_of_gloo(made)]
    _made[:] = [made for made in _made if not (made.left and _is_of_gloo(made))]
    destroyer = threading.Thread(target=left.clear, daemon=True)
    destroyer.start()
    destroyer.join(GRACE)


@atexit.register
def _join_threads() -> None:
    """Destroy the groups of gloo, which ends their threads, while Python still runs.

    A thread of gloo drops the tensor of an operation when the operation is complete,
    and needs Python's lock for that. It may be late, on a busy machine. If Python has
    begun to end by then, it aborts the process. An error may have left operations under
    way, which end when their connections are severed.
    """
    for connections in [made.connections for made in _made]:
        connections.sever()
    # No thread of Python can be started here to watch over the time.
    faulthandler.dump_traceback_later(_JOIN, exit=True, file=2)
    _made[:] = [made for made in _made if not _is_of_gloo(made)]
    faulthandler.cancel_dump_traceback_later()


# A forked child has the groups without their threads.
os.register_at_fork(after_in_child=lambda: atexit.unregister(_join_threads))


def _is_of_gloo(made: Made) -> bool:
    return isinstance(made.group, dist.ProcessGroupGloo)
