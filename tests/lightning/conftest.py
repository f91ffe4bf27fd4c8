"""What all tests of Lightning share."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take down the process group that a fit of one learner leaves in this process."""
    # Lightning sets the number of threads of PyTorch where this is not set.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
