"""What all tests of Lightning share."""

import os
from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what a fit of one learner leaves in this process.

    That is a process group, and variables as LOCAL_RANK, with which a program that a
    later test starts would wait for other learners.
    """
    # Lightning sets the number of threads of PyTorch where this is not set.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = dict(os.environ)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(found)
