"""What all tests of Lightning share."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def no_process_group() -> Iterator[None]:
    """Take down the process group that a fit of one learner leaves in this process."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
