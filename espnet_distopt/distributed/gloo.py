"""Makes a group of gloo that listens where the other learners reach this one.

gloo listens at the address of the machine's own name, unless GLOO_SOCKET_IFNAME names
an interface. Where the name means the loopback, as Debian writes it into /etc/hosts, no
other machine reaches it. The rendezvous store was reached, and so the address from
which this machine reaches the store is taken.
"""

import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from espnet_distopt.distributed.addresses import (
    host_towards,
    is_loopback,
    machine_of,
    named_host,
    outward_host,
    store_address,
)

INTERFACE = "GLOO_SOCKET_IFNAME"


def host_for_gloo(store: Any, learners: Callable[[], Sequence[str]]) -> str | None:
    """Return the address at which gloo must be told to listen.

    Args:
        store: the store of all learners.
        learners: returns where the processes of all learners are asked for
            (`own_address`); it may wait for them, and is called only if that decides.

    Returns:
        The address; None if gloo finds one by itself, or the user has named the
        interface.
    """
    if os.environ.get(INTERFACE) or not is_loopback(named_host()):
        return None
    at = store_address(store)
    own = host_towards(*at) if at else "127.0.0.1"
    if is_loopback(own):  # This machine keeps the store.
        if len(set(map(machine_of, learners()))) == 1:
            return None
        own = outward_host()
    return None if is_loopback(own) else own


def make_group(
    store: Any, rank: int, size: int, limit: timedelta, host: str | None
) -> Any:
    """Return a group of gloo, which connects its members before it returns.

    Args:
        store: a part of the store that no other group has.
        rank: this learner's place in the group.
        size: the number of its members.
        limit: the time that an operation may take.
        host: the address at which it listens; None: as gloo does by itself.

    Raises:
        RuntimeError: the members cannot be connected; it says at which address this one
            listens, and how to name another.
    """
    try:
        how = _options(limit, host)
    except (AttributeError, TypeError) as error:
        logging.warning(f"gloo listens where it likes, as torch has changed: {error}")
        how = limit
    try:
        return dist.ProcessGroupGloo(store, rank, size, how)
    except RuntimeError as error:
        if "onnect" not in str(error):
            raise
        at = os.environ.get(INTERFACE) or host
        at = at or f"{named_host()}, which its name {socket.gethostname()} means"
        raise RuntimeError(
            f"{error} (this learner listens at {at}; {INTERFACE} names the interface "
            "by which the machines reach each other)"
        ) from error


def _options(limit: timedelta, host: str | None) -> Any:
    # With TORCH_GLOO_LAZY_INIT a group would connect later, and none could sever it.
    gloo: Any = dist.ProcessGroupGloo
    if names := os.environ.get(INTERFACE):
        devices = [
            gloo.create_device(interface=name, lazy_init=False)
            for name in names.split(",")
        ]
    elif host is not None:
        devices = [gloo.create_device(hostname=host, lazy_init=False)]
    else:
        devices = [gloo.create_default_device(lazy_init=False)]
    options = gloo._Options()
    options._timeout, options._devices = limit, devices
    options._threads = 2 * len(devices)  # as torch does
    return options
