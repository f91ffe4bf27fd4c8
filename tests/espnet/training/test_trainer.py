"""The DDP that ESPnet makes beside an algorithm keeps no memory for gradients."""

from pathlib import Path

import torch
from processes import launch
from torch.nn.parallel import DistributedDataParallel

from espnet_distopt.espnet.training.trainer import _out_of_ddp

MIB = 1 << 20


def mapped() -> float:
    """Return the MiB that this process has mapped; buckets are not written at first."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * 4096 / MIB


def freed() -> float:
    """Return the MiB that are free once the model of 16 MiB is taken out of DDP."""
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048, bias=False))
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    before = mapped()
    assert _out_of_ddp(ddp) is model
    after = mapped()
    model(torch.ones(1, 2048)).sum().backward()
    with torch.no_grad():
        assert torch.equal(ddp(torch.ones(1, 2048)), model(torch.ones(1, 2048)))
    return before - after


def test_the_buckets_of_ddp_are_freed() -> None:
    (found,) = launch(1, freed)
    assert found > 0.9 * 16
