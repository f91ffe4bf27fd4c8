"""The module finds the address of a learner on the emulated network."""

import socket

import torch.distributed as dist


def own_address() -> str:
    """Return this learner's address on the network of the rendezvous store."""
    store = dist.distributed_c10d._get_default_store().underlying_store
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((store.host, 9))
        address: str = probe.getsockname()[0]
        return address
