"""The module starts learners as processes of one gloo group and collects their results.

A process is forked from one that has already imported torch, so several learners start
in less than a second. Each may live in a network namespace of its own.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

# The store looks up the name of each learner that connects. A slow name server must not
# delay the start.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
os.environ["OMP_NUM_THREADS"] = "1"
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch._dynamo", "espnet_distopt.work_queue"])
_NETWORK = 0x40000000
"""CLONE_NEWNET, the kind of namespace that `setns` enters."""


class LearnersFailedError(RuntimeError):
    """A learner has failed or has not ended in time; the message is one line."""


@dataclass(frozen=True)
class Namespace:
    """The place where a learner lives.

    Attributes:
        store: the address of the rendezvous store, as the learner sees it.
        namespace: the name of the learner's network namespace; None keeps that of this
            process.
        interface: the network interface that gloo uses.
    """

    store: str = "127.0.0.1"
    namespace: str | None = None
    interface: str = "lo"


def launch(
    places: Sequence[Namespace],
    function: Callable[..., Any],
    *args: Any,
    timeout: float,
) -> list[Any]:
    """Run `function(rank, *args)` on each learner, and return the results by rank.

    Args:
        places: the place of each learner.
        function: a function at the top of a module, because learners import it.
        args: its further arguments.
        timeout: the seconds after which the learners must have ended.

    Raises:
        LearnersFailedError: a learner has failed or has not ended in time; all learners
            have been killed.
    """
    store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
    size = len(places)
    learners = [
        (place, store.port, rank, size, function, args)
        for rank, place in enumerate(places)
    ]
    return fork(_in_group, learners, timeout=timeout)


def fork(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], *, timeout: float
) -> list[Any]:
    """Run `function(*call)` in a process of its own for each call; return the results.

    Args:
        function: a function at the top of a module, because the processes import it.
        calls: the arguments of each process.
        timeout: the seconds after which the processes must have ended.

    Raises:
        LearnersFailedError: a process has failed or has not ended in time; all have
            been killed.
    """
    with exit_on_signals():
        return _fork(function, calls, timeout)


def _fork(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], timeout: float
) -> list[Any]:
    children: list[BaseProcess] = []
    pipes: dict[Connection, int] = {}
    try:
        for rank, call in enumerate(calls):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            what = (sender, function, call)
            child: BaseProcess = _CONTEXT.Process(target=_child, args=what)
            child.start()
            sender.close()
            children.append(child)
            pipes[receiver] = rank
        return _collect(pipes, len(calls), time.monotonic() + timeout)
    finally:
        for child in children:
            _end(child)


def _end(child: BaseProcess) -> None:
    """Kill a learner and all processes that it has started."""
    with suppress(ProcessLookupError):
        assert child.pid is not None
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()  # The child may not have had a process group yet.
    child.join()


def _collect(pipes: dict[Connection, int], size: int, deadline: float) -> list[Any]:
    results: list[Any] = [None] * size
    while pipes:
        ready = wait(list(pipes), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise LearnersFailedError(
                f"no end of learners {sorted(pipes.values())} in time"
            )
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = pipes.pop(pipe)
            try:
                good, value = pipe.recv()
            except EOFError:
                raise LearnersFailedError(f"learner {rank} has died") from None
            if not good:
                raise LearnersFailedError(value)
            results[rank] = value
    return results


def _child(pipe: Connection, function: Callable[..., Any], call: Sequence[Any]) -> None:
    os.setpgrp()
    torch.set_num_threads(1)
    try:
        pipe.send((True, function(*call)))
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        first = str(error).strip().split("\n", maxsplit=1)[0]
        pipe.send((False, f"{type(error).__name__}: {first}".rstrip(": ")))
    finally:
        # A method may have left threads behind, which must not keep the process alive.
        sys.stderr.flush()
        pipe.close()
        os._exit(0)


def _in_group(
    place: Namespace,
    port: int,
    rank: int,
    size: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> Any:
    """Be a learner of one gloo group, and return `function(rank, *args)`."""
    if place.namespace is not None:
        enter(place.namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    store = dist.TCPStore(
        place.store,
        port,
        is_master=False,
        timeout=timedelta(minutes=2),
        wait_for_workers=False,
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return function(rank, *args)


def enter(namespace: str) -> None:
    """Enter a network namespace that `ip netns` has made."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}", encoding="utf-8") as file:
        if libc.setns(file.fileno(), _NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as an exception does, after cleanup."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
