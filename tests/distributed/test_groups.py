"""The process groups of a driver."""

import gc
import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

from espnet_distopt.distributed.groups import TIMEOUT, _time_limit
from tests.processes import launch
from tests.sessions import session, step


@pytest.mark.parametrize("minutes", [10, 180])
def test_who_allows_more_time_gets_it(minutes: int) -> None:
    limit = timedelta(minutes=minutes)
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=limit
    )
    found = _time_limit()
    dist.destroy_process_group()
    assert found == max(limit, TIMEOUT)


BEGIN = """\
import os
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist

from espnet_distopt.distributed.process_group import ProcessGroupDriver

rank, port = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
driver = ProcessGroupDriver()
"""

LATE = """
dropping = threading.Event()


def drop_slowly():
    dropping.set()
    until = time.monotonic() + 6
    while time.monotonic() < until:
        time.sleep(0.001)
    sys.stdout.write("dropped")


def average():
    tensor = torch.ones(1)
    weakref.finalize(tensor, drop_slowly).atexit = False
    driver._groups.of((0, 1), tensor).allreduce([tensor])


if rank == 1:
    store.wait(["begun"])
average()
store.set("begun", "1")
assert dropping.wait(60)
driver.leave()
"""
"""Learner 0 lets go of its tensor before learner 1 completes the average. So a thread
of gloo drops it, and this takes until the process is at its end. It takes long enough
for those to give up who count such a process as stuck."""

UNDER_WAY = """
tensor = torch.ones(1)
group = driver._groups.of((0, 1), tensor)
store.set(f"made {rank}", "1")
store.wait([f"made {1 - rank}"])
if rank == 0:
    store.wait(["left"])
    group.allreduce([tensor])
    del group
driver.leave()
sys.stdout.write("left")
sys.stdout.flush()
if rank == 1:
    store.set("left", "1")
    store.wait(["ended"])
"""
"""Learner 0 begins an average, in which learner 1, which lives on, takes no part."""

STUCK = """
from espnet_distopt.distributed import groups

groups._JOIN = 0.5


class Stuck:
    def __del__(self):
        sys.stdout.write("stuck")
        sys.stdout.flush()
        threading.Event().wait()


driver._groups._made.append(groups.keep(Stuck(), groups.Connections()))
driver.leave()
sys.exit(3)
"""
"""A group's destructor never ends, as gloo's does if it has forgotten an operation."""

FORKED = """
child = os.fork()
if child == 0:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
tensor = torch.full((1,), float(rank))
driver._groups.of((0, 1), tensor).allreduce([tensor]).wait()
assert tensor.item() == 1
sys.stdout.write("added")
driver.leave()
"""
"""Each learner forks a process, which ends as Python does."""


def run(script: str, printed: str, status: int = 0) -> None:
    """Run two learners, which end with a status and have printed so much.

    The gloo of PyTorch 2.8 adds lines of its own.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    learners = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(rank), str(store.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for learner in learners:
        out, errors = learner.communicate(timeout=100)
        store.set("ended", "1")
        lines = out.splitlines(keepends=True)
        said = "".join(line for line in lines if not line.startswith("[Gloo]"))
        assert (learner.returncode, said) == (status, printed), errors


@pytest.mark.processes
def test_a_process_ends_well_while_gloo_drops_the_last_tensor() -> None:
    """Python aborts a process in which a thread of gloo needs it at its end."""
    run(LATE, "dropped")


@pytest.mark.processes
def test_a_process_ends_although_an_average_is_under_way() -> None:
    run(UNDER_WAY, "left")


@pytest.mark.processes
def test_a_process_keeps_its_status_although_a_group_does_not_end() -> None:
    run(STUCK, "stuck", status=3)


@pytest.mark.processes
def test_a_forked_process_ends_without_the_threads_of_gloo() -> None:
    run(FORKED, "added")


def begin_sessions(count: int) -> list[tuple[int, int]]:
    """Return the numbers of descriptors and of threads after each session."""
    found = []
    for _ in range(count):
        with session("adpsgd") as run:
            step(run)
            run.finish()
        del run
        gc.collect()
        threads = len(os.listdir("/proc/self/task"))
        found.append((len(os.listdir("/proc/self/fd")), threads))
    return found


@pytest.mark.processes
def test_a_session_leaves_no_descriptors_and_threads_for_long() -> None:
    for found in launch(2, begin_sessions, 5):
        before, after = found[1], found[-1]
        grown = [now - then for then, now in zip(before, after, strict=True)]
        assert max(grown) < 3, found
