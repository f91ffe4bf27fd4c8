"""Settings of the whole test suite: one thread, the same examples every time."""

import os
import signal

import pytest
import torch
from hypothesis import settings

from tests.browser import browser
from tests.fork_server import context
from tests.kinds import KINDS, kind_of
from tests.little_memory import little_memory

__all__ = ["browser", "little_memory"]  # Fixtures of all tests.

# The shell of a runner in the background ignores it, and so would all that is started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The store looks up the name of whoever connects; a slow name server is not our matter.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

torch.set_num_threads(1)
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


def pytest_configure(config: pytest.Config) -> None:
    """Announce the kinds of tests: `pytest -m fast`, `-m "processes or slurm"`."""
    for kind, meaning in KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {meaning}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its kind, before -m chooses, and its group for pytest-xdist.

    Tests of a file that start processes stay together, because they share fixtures; so
    do all in the folder of Slurm, because they share a cluster. These take longest, and
    mostly wait; so one worker begins with them, and the other has all that computes.
    """
    for item in items:
        kind = kind_of(item)
        item.add_marker(kind)
        if _on_slurm(item):
            item.add_marker(pytest.mark.xdist_group("slurm"))
        elif kind not in ("fast", "thorough"):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    items.sort(key=lambda item: not _on_slurm(item))


def _on_slurm(item: pytest.Item) -> bool:
    return item.path.parent.name == "slurm"


def pytest_collection_finish() -> None:
    """Settle the fork server; the benchmarks, once imported, ask for less."""
    context()
