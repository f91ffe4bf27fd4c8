"""The peer is hivemind's Optimizer with local updates.

It averages the learners' states in the background, as soon as all learners together
have made `period` steps times their number. It does not matter how many steps each of
them has made, so a slow learner slows nobody. Learners find each other through a
distributed hash table.
"""

import multiprocessing
from typing import Any

import hivemind
import torch.distributed as dist

from emulated.addresses import own_host
from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train; the other learners find learner 0 first."""
    # hivemind works with no other start method.
    multiprocessing.set_start_method("fork", force=True)
    rank, size = dist.get_rank(), dist.get_world_size()
    meeting: list[Any] = [None]
    if rank == 0:
        table = _table([])
        meeting = [[str(address) for address in table.get_visible_maddrs()]]
    dist.broadcast_object_list(meeting)
    if rank != 0:
        table = _table(meeting[0])
    optimizer = hivemind.Optimizer(
        dht=table,
        run_id="benchmark",
        params=list(model.parameters()),
        optimizer=method.optimizer,
        batch_size_per_step=1,
        target_batch_size=method.options["period"] * size,
        use_local_updates=True,
        matchmaking_time=3.0,  # hivemind's documentation says so for small local runs.
        averaging_timeout=120.0,
    )
    dist.barrier()

    def finish() -> None:
        dist.barrier()
        optimizer.shutdown()
        table.shutdown()

    step = plain(model, optimizer)
    return MeasuredTraining(step, finish, lambda: float(optimizer.local_epoch))


def _table(others: list[str]) -> Any:
    address = f"/ip4/{own_host()}/tcp/0"
    return hivemind.DHT(host_maddrs=[address], initial_peers=others, start=True)
