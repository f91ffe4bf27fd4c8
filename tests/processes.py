"""Runs a function in several real processes that form a process group."""

import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from tests.fork_server import context
from tests.ports import free_ports

# The store looks up the name of whoever connects; a slow name server is not our matter.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


class Lines(logging.Handler):
    """Keeps the log of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def launch(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 60,
    dying: Collection[int] = (),
    hosted: bool = False,
    backend: str = "gloo",
    variables: Mapping[str, str] | None = None,
) -> list[Any]:
    """Return `function(*args)` of each rank; None for those in `dying`.

    The store is kept by this process, or by learner 0 if `hosted`, on a port that the
    system chose. If one process fails or the time is over, all are killed. Those in
    `dying` are not waited for: they die, or stop and never go on. `backend` is that of
    `init_process_group`; with NCCL the processes may share a GPU. `variables` are set
    in the environment of each process before that.

    Raises:
        AssertionError: with the tracebacks of the processes that failed, or the names
            of those that did not end in time.
    """
    store = (
        None
        if hosted
        else dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    )
    port = store.port if store else free_ports(1)[0]
    server = context()
    children, pipes = [], {}
    for rank in range(size):
        receiver, sender = server.Pipe(duplex=False)
        hosts = hosted and rank == 0
        child = server.Process(
            target=_child,
            args=(sender, port, hosts, rank, size, backend, variables, function, args),
        )
        child.start()
        sender.close()
        children.append(child)
        pipes[receiver] = rank
    try:
        return _collect(pipes, size, time.monotonic() + timeout, dying)
    finally:
        for child in children:
            child.kill()
            child.join()


def share_a_gpu(rank: int) -> None:
    """Let NCCL connect this process to others that use the same GPU.

    It refuses two processes of a machine on one GPU. So each one says that it is on a
    machine of its own; they communicate through sockets then.
    """
    os.environ["NCCL_HOSTID"] = f"learner{rank}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["NCCL_IB_DISABLE"] = "1"


def _collect(
    pipes: dict[Connection, int], size: int, deadline: float, dying: Collection[int]
) -> list[Any]:
    results: list[Any] = [None] * size
    failures = []
    while not dying or set(pipes.values()) - set(dying):
        if not pipes:
            break
        # once one has failed, the others have a moment to say what they saw
        left = 2.0 if failures else deadline - time.monotonic()
        ready = wait(list(pipes), max(0.0, left))
        if not ready:
            failures.append(f"no end of learners {sorted(pipes.values())} in time")
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pipes.pop(pipe)
            try:
                good, value = pipe.recv()
            except EOFError:
                if rank not in dying:
                    failures.append(f"learner {rank} has died")
                continue
            if good:
                results[rank] = value
            else:
                failures.append(f"learner {rank}:\n{value}")
    if failures:
        raise AssertionError("\n".join(failures))
    return results


def _child(
    pipe: Connection,
    port: int,
    hosts: bool,
    rank: int,
    size: int,
    backend: str,
    variables: Mapping[str, str] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ.update(variables or {})
    share_a_gpu(rank)
    try:
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=hosts,
            timeout=timedelta(seconds=30),
            wait_for_workers=False,
        )
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        pipe.send((True, function(*args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        sys.exit(1)
