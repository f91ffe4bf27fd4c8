"""The process groups of a driver."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from espnet_distopt.distributed.groups import TIMEOUT, _time_limit


@pytest.mark.parametrize("minutes", [10, 180])
def test_who_allows_more_time_gets_it(minutes: int) -> None:
    limit = timedelta(minutes=minutes)
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=limit
    )
    found = _time_limit()
    dist.destroy_process_group()
    assert found == max(limit, TIMEOUT)
