"""The lock of the run that this process is in (`distributed.run_lock`).

ESPnet's tasks have class methods only, and so no place for what lives as long as a run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from espnet_distopt.distributed.run_lock import RunLock

_of_this_run: ContextVar[RunLock | None] = ContextVar("lock", default=None)


@contextmanager
def run_in(output_dir: Path) -> Iterator[None]:
    """Give the body a lock of its own (`lock_of_run`), and free it at the end."""
    lock = RunLock(output_dir)
    before = _of_this_run.set(lock)
    try:
        yield
    finally:
        _of_this_run.reset(before)
        lock.free()


def lock_of_run() -> RunLock | None:
    """Return the lock of the run that this process is in; None outside of a run."""
    return _of_this_run.get()
