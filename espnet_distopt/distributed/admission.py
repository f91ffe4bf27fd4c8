"""Whether a run may start: learner 0 decides, and tells the others.

`init_process_group` is no barrier. NCCL connects learners only when they communicate,
and so does gloo with TORCH_GLOO_LAZY_INIT. So one learner may train already when the
next one comes, and nothing follows from the order in which they come. Instead each
learner writes what it has found on its own machine into the rendezvous store. Learner 0
waits for that of all, decides, and writes its decision, for which the others wait. It
stays there, so that a learner that comes late, or is started again, reads the same.
"""

import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from espnet_distopt.distributed import keys
from espnet_distopt.distributed.addresses import store_address
from espnet_distopt.distributed.connections import keeps_store
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.errors import InputError, PeerLostError

WAIT = 1800.0
"""Seconds for which learners wait for others that have not come."""

LINGER = 5.0
"""Seconds for which learner 0 keeps the store until the others have read from it."""

_LOOK = 0.05
"""Seconds between two looks into the store. A wait in the store could not be ended by
Ctrl-C."""

_ADMITTED, _REFUSED = "admitted", "refused"


def start_together(examine: Callable[[], str], decide: Callable[[], None]) -> None:
    """Return when the run may start, or end all of its learners.

    Args:
        examine: Says in words what must be the same on all machines. It raises
            InputError if this machine lacks something.
        decide: Raises InputError if the run may not start. Only learner 0 calls it,
            once in a run.

    Raises:
        InputError: The run may not start, and this learner is its only one.
        SystemExit: The run may not start. The learner that has found that prints why,
            and so does learner 0.
        PeerLostError: Another learner has not come, or the store is gone.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        decide()
        examine()
        return
    default = dist.distributed_c10d._get_default_store()
    store, rank = PrefixStore(keys.START, default), dist.get_rank()
    try:
        if rank > 0 or (incarnation() > 0 and store.check([keys.DECIDED])):
            _obey(store, rank, examine)
        else:
            _decide(store, examine, decide)
    except dist.DistError as error:
        raise PeerLostError(
            "learner 0, or the launcher that keeps the rendezvous store, has ended "
            f"before the run could start ({error})"
        ) from error


def _obey(store: Any, rank: int, examine: Callable[[], str]) -> None:
    """Tell learner 0 what this machine has, and wait for its decision."""
    try:
        store.set(keys.found(rank), examine())
    except InputError as error:
        _say(error)
        why = f"learner {rank} on {socket.gethostname()}: {error}"
        store.compare_set(keys.REFUSED, "", why)
        raise SystemExit(2) from None
    _await(
        lambda: store.check([keys.DECIDED]), "learner 0 has not decided on the start"
    )
    decided = bytes(store.get(keys.DECIDED)).decode()
    store.set(keys.decision_read(rank), decided)
    if decided != _ADMITTED:
        raise SystemExit(2)


def _decide(store: Any, examine: Callable[[], str], decide: Callable[[], None]) -> None:
    """Decide, and tell the others.

    A launcher ends all learners as soon as one has ended. So the reason is printed
    before the others can know that they have to end.
    """
    others = range(1, dist.get_world_size())
    found = [keys.found(rank) for rank in others]
    decided = _REFUSED
    try:
        decide()
        own = examine()
        _await(
            lambda: store.check(found) or store.check([keys.REFUSED]),
            "not all learners have come to the start",
        )
        if store.check([keys.REFUSED]):
            raise InputError(bytes(store.get(keys.REFUSED)).decode())
        for rank, said in zip(others, store.multi_get(found), strict=True):
            if (theirs := bytes(said).decode()) != own:
                raise InputError(
                    f"learner {rank} has {theirs}, and learner 0 has {own}: all "
                    "machines need the same"
                )
        decided = _ADMITTED
    except InputError as error:
        _say(error)
        raise SystemExit(2) from None
    finally:
        store.set(keys.DECIDED, decided)
        _linger(store, [keys.decision_read(rank) for rank in others])


def _linger(store: Any, read: list[str]) -> None:
    """Keep the store, if this process does, until the others have read."""
    address, end = store_address(store), time.monotonic() + LINGER
    if address is not None and keeps_store(address[1]):
        while not store.check(read) and time.monotonic() < end:
            time.sleep(_LOOK)


def _await(done: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + WAIT
    while not done():
        if time.monotonic() > end:
            raise PeerLostError(f"{otherwise} in {WAIT:.0f} s")
        time.sleep(_LOOK)


def _say(error: InputError) -> None:
    print(f"error: {error}", file=sys.stderr, flush=True)
