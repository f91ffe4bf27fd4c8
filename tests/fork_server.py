"""The fork server of all tests: it imports once what their processes need.

A process cannot use CUDA if it was forked from one that has. ESPnet and Lightning ask
CUDA for the abilities of a GPU when they are imported. So with a GPU each process
imports them itself.

Python has one a process, and what it preloads is settled when the first child starts.
Test modules that need more add to `PRELOAD` when they are imported: all are, before
the first test runs.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

import torch

WITHOUT_CUDA = (
    "pytest",
    "torch.distributed",
    "torch._dynamo",
    "espnet_distopt.session",
)
"""What does not use CUDA when it is imported."""

PRELOAD = list(WITHOUT_CUDA)


def context() -> ForkServerContext:
    """Return it."""
    server = multiprocessing.get_context("forkserver")
    bare = torch.cuda.is_available()
    server.set_forkserver_preload(list(WITHOUT_CUDA) if bare else PRELOAD)
    return server
