"""The peer is fairscale's SlowMoDistributedDataParallel over Local SGD.

Both of its frequencies are `period`, the momentum is sharded (the default), and the
group is given. Any other setting calls `torch.cuda.synchronize`, which a build without
CUDA refuses.
"""

import torch.distributed as dist
from fairscale.experimental.nn.data_parallel import SlowMoDistributedDataParallel

from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train, with one process per node."""
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
