"""Settings of the whole test suite: one thread, the same examples every time."""

import os
import signal
from typing import Any

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
    """Give each test its kind, before -m chooses, and put the longest files first.

    The tests of Slurm take longest, and mostly wait; so one worker begins with them,
    and the other has all that computes. What computes in one process comes last: its
    files are short, so that both workers end at the same time.
    """
    for item in items:
        item.add_marker(kind_of(item))
    slow = {item.path for item in items if not item.get_closest_marker("fast")}
    items.sort(key=lambda item: (not _on_slurm(item.nodeid), item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file on one worker of pytest-xdist: they share fixtures.

    So do all in the folder of Slurm, because they share a cluster. (`--dist loadgroup`
    groups nothing with pytest 9.2 and pytest-xdist 3.8, and says nothing.) That is for
    `--dist loadfile`; without it, as `make gpu` runs files, each test goes by itself.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "slurm" if _on_slurm(nodeid) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


def _on_slurm(nodeid: str) -> bool:
    return nodeid.startswith("tests/slurm/")


def pytest_collection_finish() -> None:
    """Settle the fork server; the benchmarks, once imported, ask for less."""
    context()
