"""Shares of work in several processes: results in order, and all end together."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.parallel import do_shares


def double(share: int, progress: Callable[[int], None]) -> int:
    if share == 0:
        time.sleep(0.2)  # so that the first share is done last
    progress(1)
    progress(share)
    return 2 * share


@pytest.mark.parametrize("shares", [[3], [0, 1, 2]])
def test_results_in_the_order_of_the_shares(shares: list[int]) -> None:
    told: list[tuple[int, int]] = []
    total = len(shares) + sum(shares)
    results = do_shares(double, shares, total, lambda *progress: told.append(progress))
    assert results == [2 * share for share in shares]
    assert told == sorted(told) and told[-1] == (total, total)
    assert len(told) == 2 * len(shares)


def forever(share: str, progress: Callable[[int], None]) -> None:
    """Do what the share says; other shares never end."""
    if share == "bad input":
        raise InputError("a.wav: truncated")
    if share == "full disk":
        raise OSError(28, "No space left on device")
    if share == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    progress(1)
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("share", "kind", "message"),
    [
        ("bad input", InputError, r"^a\.wav: truncated$"),
        ("full disk", OSError, "No space left on device"),
        ("killed", InputError, "one of the processes was killed"),
    ],
)
def test_one_failure_ends_all(share: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        do_shares(forever, ["forever", share], 9, lambda done, total: None)
    assert multiprocessing.active_children() == []


def test_interrupted() -> None:
    def interrupt(done: int, total: int) -> None:
        for child in multiprocessing.active_children():  # as a terminal does
            assert child.pid is not None
            os.kill(child.pid, signal.SIGINT)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do_shares(forever, ["forever", "forever"], 9, interrupt)
    assert multiprocessing.active_children() == []


def test_the_children_leave_sigusr1_to_the_parent() -> None:
    def signal_children(done: int, total: int) -> None:
        for child in multiprocessing.active_children():  # as Slurm does
            assert child.pid is not None
            os.kill(child.pid, signal.SIGUSR1)

    assert do_shares(double, [0, 1], 3, signal_children) == [0, 2]
