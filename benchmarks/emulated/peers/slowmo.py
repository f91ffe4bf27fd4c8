"""fairscale's SlowMoDistributedDataParallel, over Local SGD, every `period` steps.

Both frequencies are the period, the momentum is sharded (its default), and the group is
given: any other setting calls `torch.cuda.synchronize`, which a build without CUDA
refuses.
"""

import torch.distributed as dist
from fairscale.experimental.nn.data_parallel import SlowMoDistributedDataParallel

from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """One process a node."""
    period = method.options["period"]
    parallel = SlowMoDistributedDataParallel(
        model,
        nprocs_per_node=1,
        slowmo_frequency=period,
        localsgd_frequency=period,
        global_group=dist.group.WORLD,
    )
    optimizer = method.optimizer(model.parameters())
    train = plain(parallel, optimizer)

    def step() -> None:
        train()
        parallel.perform_slowmo(optimizer)

    return MeasuredTraining(step)
