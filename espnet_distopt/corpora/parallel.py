"""Several processes that each do a share of some work, and end together."""

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
"""Does a share, and tells how many units more it has done."""


def do_shares(
    work: Work[_Share, _Result],
    shares: Sequence[_Share],
    total: int,
    progress: Callable[[int, int], None],
) -> list[_Result]:
    """Do each share in a process of its own (a single one: in this process).

    If one fails, or this process is interrupted, the others are ended at once. To be
    called by the main thread.

    Args:
        work: a function that a new process can import.
        shares: what each process does; can be pickled.
        total: units of work in all shares.
        progress: is told how many units are done, of how many.

    Returns:
        The results, in the order of the shares.

    Raises:
        InputError: a process was killed.
        InputError, OSError: what a share raised.
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
    resource_tracker.ensure_running()  # start() would, and let Ctrl-C through
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
    """Hold back Ctrl-C from this process for a moment, from its new children for ever.

    So the parent alone answers it, in one line, and knows its children when it does.
    """
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # is inherited
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
