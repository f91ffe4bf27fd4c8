"""The fork server of all tests: it imports once what their processes need.

Python has one a process, and what it preloads is settled when the first child starts.
Test modules that need more add to `PRELOAD` when they are imported: all are, before
the first test runs.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOAD = ["pytest", "torch.distributed", "torch._dynamo", "espnet_distopt.session"]


def context() -> ForkServerContext:
    """Return it."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOAD)
    return server
