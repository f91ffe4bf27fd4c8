"""The module finds the address of a learner on the emulated network."""

import torch.distributed as dist

from espnet_distopt.distributed.addresses import own_address, store_address


def own_host() -> str:
    """Return this learner's address on the network of the rendezvous store."""
    store = store_address(dist.distributed_c10d._get_default_store())
    _, host, *_ = own_address(0, store).split()
    return host
