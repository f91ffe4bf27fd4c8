"""Divides work among several processes, which end together.

If one of them fails, or the user presses Ctrl-C, none is left over.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from espnet_distopt.errors import InputError

_Share = TypeVar("_Share")
_Result = TypeVar("_Result")
Work = Callable[[_Share, Callable[[int], None]], _Result]
"""Does a share; it calls its second argument with each number of units it has done."""


def do_shares(
    work: Work[_Share, _Result],
    shares: Sequence[_Share],
    total: int,
    progress: Callable[[int, int], None],
) -> list[_Result]:
    """Do each share in a process of its own; a single share is done in this process.

    If one process fails, or this one is interrupted, all others are ended at once. Only
    the main thread may call this, because it changes the handler of Ctrl-C.

    Args:
        work: The function that does a share; a new process must be able to import it.
        shares: What each process does; must be possible to pickle.
        total: The number of units of work in all shares.
        progress: Called with the number of units done, and of all.

    Returns:
        The results, in the order of the shares.

    Raises:
        InputError: A process was killed, or a share raised it.
        OSError: A share raised it.
    """
    done = 0

    def add(units: int) -> None:
        nonlocal done
        done += units
        progress(done, total)

    if len(shares) == 1:
        return [work(shares[0], add)]
    # Spawned processes share no state with this one.
    context = multiprocessing.get_context("spawn")
    # start() would start it, too, but let Ctrl-C through to it.
    resource_tracker.ensure_running()
    children: list[Any] = []
    pipes: dict[Connection, int] = {}
    try:
        with _interrupts_held():
            for index, share in enumerate(shares):
                receiver, sender = context.Pipe(duplex=False)
                pipes[receiver] = index
                child = context.Process(
                    target=_child, args=(sender, work, share), daemon=True
                )
                child.start()
                children.append(child)
                sender.close()
        return _collect(pipes, add)
    finally:
        for child in children:
            child.terminate()
            child.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C and SIGUSR1 while children are started, who never get them.

    The terminal sends Ctrl-C to all processes, and Slurm SIGUSR1. The children inherit
    that both are blocked, so that the parent alone answers, in one line or by the exit
    status that requeues the job, when it knows all its children.
    """
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    held = {signal.SIGINT, signal.SIGUSR1}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _child(pipe: Connection, work: Work[_Share, _Result], share: _Share) -> None:
    message: tuple[str, object]
    try:
        message = "result", work(share, lambda done: pipe.send(("progress", done)))
    except BrokenPipeError:
        return  # the parent is gone
    except (InputError, OSError) as error:
        message = "error", error
    with suppress(BrokenPipeError):
        pipe.send(message)


def _collect(pipes: dict[Connection, int], add: Callable[[int], None]) -> list[Any]:
    results: list[Any] = [None] * len(pipes)
    while pipes:
        for pipe in wait(list(pipes)):
            assert isinstance(pipe, Connection)
            try:
                kind, value = pipe.recv()
            except EOFError:
                raise InputError(
                    "one of the processes was killed (for lack of memory?): "
                    "try a smaller --nj"
                ) from None
            if kind == "error":
                raise value
            if kind == "progress":
                add(value)
            else:
                results[pipes.pop(pipe)] = value
                pipe.close()
    return results
