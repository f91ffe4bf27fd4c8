"""Settings of the whole test suite: one thread, the same examples every time."""

import torch
from hypothesis import settings

from tests.fork_server import context

torch.set_num_threads(1)
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


def pytest_collection_finish() -> None:
    """Settle the fork server; the benchmarks, once imported, ask for less."""
    context()
