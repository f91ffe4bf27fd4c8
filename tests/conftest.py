"""Settings of the whole test suite: one thread, the same examples every time."""

import os

import pytest
import torch
from hypothesis import settings

from tests.fork_server import context
from tests.kinds import KINDS, kind_of

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
    do all that need Slurm, because there is one cluster.
    """
    for item in items:
        kind = kind_of(item)
        item.add_marker(kind)
        if kind not in ("fast", "thorough"):
            group = kind if kind == "slurm" else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Settle the fork server; the benchmarks, once imported, ask for less."""
    context()
