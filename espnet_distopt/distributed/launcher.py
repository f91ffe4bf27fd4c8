"""What the launcher of the learners says of where they run."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from espnet_distopt.core.protocols import learner_name
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.launch_variables import (
    FAILED,
    INCARNATION,
    LEARNERS,
    LOST,
    RETURNS,
    incarnation,
)
from espnet_distopt.distributed.slurm_step import tasks_per_node
from espnet_distopt.errors import InputError, in_words


def learners_per_node(size: int, environment: Mapping[str, str]) -> int | None:
    """Return how many learners each machine has; None: unknown, or not equally many.

    This package's launcher lists the learners of each machine. torchrun counts those of
    one machine. Slurm counts tasks, which are the learners if there are as many: a task
    may start several. `environment` has the variables of this process.
    """
    counts = _counts(size, environment)
    return counts[0] if sum(counts) == size and len(set(counts)) == 1 else None


def _counts(size: int, environment: Mapping[str, str]) -> list[int]:
    """Return the learners of each machine, as far as one can know."""
    listed = environment.get(LEARNERS, "").split(",")
    if all(each.isdecimal() for each in listed):
        return list(map(int, listed))
    tasks = tasks_per_node(environment)
    if sum(tasks) == size:
        return tasks
    if "LOCAL_WORLD_SIZE" in environment:
        local = _filled(environment["LOCAL_WORLD_SIZE"], size)
        nodes = environment.get("GROUP_WORLD_SIZE", str(len(local)))
        return local if nodes == str(len(local)) else []
    if tasks or "SLURM_PROCID" not in environment:
        return []
    if environment.get("SLURM_NTASKS", str(size)) != str(size):
        return []
    return _filled(environment.get("SLURM_NTASKS_PER_NODE", ""), size)


def _filled(text: str, size: int) -> list[int]:
    """Return as many machines of `text` learners as `size` learners fill."""
    each = int(text) if text.isdecimal() else 0
    return [each] * (size // each) if each else []


def check_process_group() -> None:
    """Raise InputError if the launcher started others and no process group joins them.

    A session made too early would train alone, and nothing would say so.
    """
    size = os.environ.get("WORLD_SIZE", "")
    if not dist.is_initialized() and size.isdecimal() and int(size) > 1:
        raise InputError(
            f"WORLD_SIZE is {size}, but there is no process group: call "
            "torch.distributed.init_process_group before the session is made (or unset "
            "WORLD_SIZE to train alone)"
        )


def announce_survival() -> None:
    """Tell the launcher that the others go on if a learner dies from now on.

    Without this, this package's launcher ends all learners when one dies, as torchrun
    does. Any learner may call it, once there is a process group over a TCP store that
    the launcher keeps; otherwise it does nothing.
    """
    if INCARNATION in os.environ:
        _store().set(keys.SURVIVES, "")


def survival_announced() -> bool:
    """Return whether a learner has told the launcher that the others go on."""
    return bool(_store().check([keys.SURVIVES]))


def announce_joined(learner: str) -> None:
    """Tell the launcher, once, that a replacement has joined, or waits for a member.

    It does not hang then, and the launcher shall not kill it. It waits as long for a
    member that makes no step as that one's validation takes.

    Args:
        learner: its name (`learner_name`).
    """
    if INCARNATION not in os.environ:
        return
    store = _store()
    known = store.get(keys.JOINED).decode() if store.check([keys.JOINED]) else ""
    if learner not in known.split():
        store.append(keys.JOINED, f"{learner} ")


def is_started_again() -> bool:
    """Return whether the launcher starts this learner again if it fails."""
    return os.environ.get(RETURNS) == "1"


def announce_end(store: Any, rank: int, lost: bool, why: str) -> None:
    """Tell the launcher why this learner ends by an error.

    `lost` says whether the others go on without it. A session's store is its own part,
    of which no other thread makes use.
    """
    if INCARNATION in os.environ:
        root, key = without_prefix(store), keys.end(learner_name(rank, incarnation()))
        root.set(key, f"{LOST if lost else FAILED} {why}")
        root.check([key])  # It is answered, and so the store has what was set.


def announce_failure(error: Exception) -> None:
    """Tell the launcher why this learner fails, if no session has told it.

    Without a process group there is nowhere to say it.
    """
    if INCARNATION not in os.environ or not dist.is_initialized():
        return
    store, rank = _store(), dist.get_rank()
    with suppress(RuntimeError):  # The store may be gone.
        if not store.check([keys.end(learner_name(rank, incarnation()))]):
            announce_end(store, rank, lost=False, why=in_words(error))


def announce_hopeless(reason: str) -> None:
    """Tell the launcher why nobody can join any more, so that it ends all."""
    if INCARNATION in os.environ:
        _store().compare_set(keys.HOPELESS, "", reason)


def _store() -> Any:
    """Return the store of the default process group, without the group's prefix."""
    return without_prefix(dist.distributed_c10d._get_default_store())


def without_prefix(store: Any) -> Any:
    """Return the store whose keys the launcher reads, of a part of it."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store
