"""The process-group driver between real processes."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import launch

from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.core.effects import AwaitGossip, Invite, Program
from espnet_distopt.distributed import groups, process_group
from espnet_distopt.distributed.gossip import Gossip
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.distributed.streams import Streams
from espnet_distopt.errors import STOPPED, PeerLostError
from espnet_distopt.session import Session
from tests import sessions
from tests.sessions import session


def place(run: Session, value: float) -> None:
    run.learner.params.fill_(value)
    algorithm: Any = run.algorithm
    algorithm.snapshot.publish()


def step(run: Session) -> None:
    """One step on (x - 1)^2 / 2."""
    sessions.step(run, lambda x: (x - 1).square().sum() / 2)


def epochs(lengths: list[list[int]]) -> list[float]:
    """One epoch for each row of step counts; returns the parameter after each."""
    with session("adpsgd", lr=0.0) as run:
        place(run, float(run.learner.rank))
        after = []
        for row in lengths:
            for _ in range(row[run.learner.rank]):
                step(run)
            run.finish()
            after.append(run.learner.params.item())
        assert run.metrics()["bytes"] > 0
    return after


def figures_within_an_epoch() -> tuple[float, float]:
    with session("adpsgd", size=1000) as run:
        sent = exchanges = 0.0
        while exchanges < 5:
            step(run)
            time.sleep(0.001)
            figures = run.metrics()
            sent += figures["bytes"]
            exchanges += figures["exchanges"]
        run.finish()
    return sent // 8000, exchanges  # The rest are the beginning's few bytes.


def test_bytes_are_those_of_the_exchanges_that_are_counted_with_them() -> None:
    for sent, exchanges in launch(2, figures_within_an_epoch, timeout=20):
        assert abs(sent - exchanges) <= 1, "one may be between the two counts"


@pytest.mark.parametrize("size", [2, 4])
def test_adpsgd_conserves_the_sum_whoever_ends_first(size: int) -> None:
    rows = [[200] * size, [0] * size]
    rows += [[15 if r == first else 1 for r in range(size)] for first in range(size)]
    rows += [[0 if r == first else 9 for r in range(size)] for first in range(size)]
    after = launch(size, epochs, rows)
    start = sum(range(size))
    for epoch in range(len(rows)):
        assert sum(x[epoch] for x in after) == pytest.approx(start, abs=1e-12)
    final = [x[-1] for x in after]
    assert max(final) - min(final) < size - 1


def uneven(algorithm: str, lengths: list[int]) -> tuple[list[float], float]:
    with session(algorithm, lr=0.1, period=4) as run:
        for _ in range(lengths[run.learner.rank]):
            step(run)
        with run.consensus():
            algorithm_: Any = run.algorithm
            return run.learner.params.tolist(), algorithm_.fragments[0].filter.rho


def test_bmuf_with_unequal_epochs_comes_to_an_end() -> None:
    results = launch(2, uneven, "bmuf", [3, 13], timeout=20)
    assert results[0] == results[1]


def unequal_allreduce() -> str:
    try:
        with session("allreduce", lr=0.1) as run:
            for _ in range(2 + run.learner.rank):
                step(run)
            run.finish()
    except UnequalStepsError as error:
        return str(error)
    return "no error"


def test_allreduce_with_unequal_epochs_is_an_error_not_a_hang() -> None:
    for message in launch(2, unequal_allreduce, timeout=20):
        assert "unequal numbers of steps" in message


def finish_times(slow: int) -> float:
    with session("adpsgd") as run:
        own = run.learner.rank == slow
        for _ in range(20 if own else 200):
            if own:
                time.sleep(0.1)
            step(run)
        return time.monotonic()


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_learner_does_not_slow_the_other(slow: int) -> None:
    """The fast one is through with 200 steps before the slow one's 20 are done."""
    ends = launch(2, finish_times, slow)
    assert ends[1 - slow] < ends[slow]


def before_its_first_step() -> int:
    with session("adpsgd", max_staleness=1) as run:
        if run.learner.rank == 0:
            for _ in range(30):
                step(run)
        run.begin_batch(1)
        dist.barrier()
        return run.learner.steps


def test_gossip_begins_with_the_first_batch() -> None:
    """Learner 1 answers while it computes; else learner 0 would wait for ever."""
    assert launch(2, before_its_first_step, timeout=30) == [30, 0]


def between_barriers() -> float:
    """Train as one of two learners that meet again and again; the first one is slow."""
    with session("adpsgd", max_staleness=2, size=500_000) as run:
        for _ in range(20):
            for _ in range(8):
                if run.learner.rank == 0:
                    time.sleep(0.01)
                step(run)
            dist.barrier()
        return run.metrics()["exchanges"]


def test_a_learner_may_wait_in_a_barrier_of_its_own() -> None:
    """It answers no invitation before its next step; the other must not wait for it."""
    assert min(launch(2, between_barriers, timeout=60)) > 5


def backward_twice() -> None:
    loss = torch.ones(1, requires_grad=True).square().sum()
    loss.backward()
    loss.backward()


def lose(algorithm: str, victim: int, how: str) -> str:
    """The victim ends in its third step; the others say what they saw of it."""
    try:
        with session(algorithm) as run:
            for count in range(1000):
                if run.learner.rank == victim and count == 3:
                    if how == "backward":
                        backward_twice()
                    raise OSError("disk full")
                step(run)
                if run.learner.rank != victim:
                    time.sleep(0.01)
    except PeerLostError as error:
        return str(error)
    except (OSError, RuntimeError):
        return "the victim"
    return "nothing noticed"


@pytest.mark.parametrize(
    ("algorithm", "victim"),
    [
        *(("dpsgd", 0), ("dpsgd", 1), ("allreduce", 1), ("d1d_model", 1)),
        *(("adpsgd", 0), ("adpsgd", 1)),
    ],
)
def test_an_exception_surfaces_in_the_other_with_its_text(
    algorithm: str, victim: int
) -> None:
    results = launch(2, lose, algorithm, victim, "raises", timeout=20)
    assert results[victim] == "the victim"
    assert f"learner {victim} ended with OSError: disk full" in results[1 - victim]


def test_an_error_of_autograd_is_not_taken_for_one_of_the_network() -> None:
    """Its text has the word `time` in it."""
    results = launch(2, lose, "allreduce", 1, "backward", timeout=20)
    assert results[1] == "the victim"
    assert "learner 1 ended with RuntimeError: Trying to backward" in results[0]


def left_threads() -> list[str]:
    """Return the threads of sessions; that which destroys groups is the process's."""
    others = {*threading.enumerate()} - {groups._destroyer}
    return [each.name for each in others if "distopt" in each.name]


def threads_after(algorithm: str, victim: int) -> list[str]:
    """Learners fail one after the other, without the end of an epoch."""
    with contextlib.suppress(OSError, PeerLostError), session(algorithm) as run:
        for _ in range(3):
            step(run)
        if run.learner.rank != victim:
            time.sleep(1)
        raise OSError("disk full")
    return left_threads()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("algorithm", ["adpsgd", "allreduce", "dpsgd"])
def test_no_thread_outlives_a_session_that_fails(algorithm: str, victim: int) -> None:
    """Python aborts a process whose threads come back from C++ after its end."""
    assert launch(2, threads_after, algorithm, victim, timeout=20) == [[], []]


def keep_pipe(fails: bool) -> bool:
    """Return whether the pipe of the gossip's waits is open after a session."""

    def inodes() -> set[int]:
        files = [Path("/dev/fd", name) for name in os.listdir("/dev/fd")]
        return {file.stat().st_ino for file in files if file.exists()}

    with contextlib.suppress(OSError), session("adpsgd") as run:
        driver: Any = run.driver
        pipe = os.fstat(driver._gossip._pairs.wakeup._reader).st_ino
        step(run)
        if fails:
            raise OSError("disk full")
        run.finish()
    return pipe in inodes()


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_closes_the_pipe_of_its_waits(fails: bool) -> None:
    assert launch(2, keep_pipe, fails, timeout=30) == [False, False]


def fail_to_begin(part: str, error: Exception) -> list[str]:
    """Fail in the constructor, after the heartbeat has begun."""

    def failing(*_: object) -> None:
        raise error

    setattr(process_group, part, failing)
    with pytest.raises(type(error), match=str(error)):
        ProcessGroupDriver(silence=3)
    return left_threads()


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("Groups", ValueError("no group")),
        ("Watch", RuntimeError("Connection reset by peer")),
    ],
)
def test_no_thread_outlives_a_driver_that_fails_to_begin(
    part: str, error: Exception
) -> None:
    assert launch(2, fail_to_begin, part, error, timeout=20) == [[], []]


def stop_as_agreed() -> str:
    """Both stop after a meeting; learner 0 comes out of it a second later."""

    def meet() -> Program:
        yield from ()
        if run.learner.rank == 0:
            time.sleep(1)

    try:
        with session("adpsgd") as run:
            run.mean(0.0)
            run.driver.run(meet())
            run.driver.run(meet())
            raise SystemExit(STOPPED)
    except SystemExit as stop:
        return f"stopped with {stop.code}"


def test_who_stops_as_agreed_does_not_fail_the_others() -> None:
    assert launch(2, stop_as_agreed, timeout=20) == [f"stopped with {STOPPED}"] * 2


def distance() -> tuple[float, float]:
    with session("adpsgd", from_consensus=True) as run:
        place(run, 1.0 + 2 * run.learner.rank)
        run.finish()
        with_option = run.enter_consensus()
        run.leave_consensus()
        return with_option, run.learner.params.item()


def test_consensus_distance_with_from_consensus() -> None:
    for figure, x in launch(2, distance):
        assert x == 2.0
        assert figure == pytest.approx(0.5)


def in_time(function: Callable[[], object]) -> bool:
    """Whether `function` has returned within three seconds."""
    returned = threading.Event()
    thread = threading.Thread(target=lambda: (function(), returned.set()), daemon=True)
    thread.start()
    return returned.wait(3)


def test_gossip_that_moves_before_the_wait_begins_is_not_missed() -> None:
    driver: Any = ProcessGroupDriver()
    side: Any = Gossip.__new__(Gossip)
    side._monitor, side._spent = driver._monitor, driver.spent
    side.progress, side.failure = 0, None
    side.streams = Streams(torch.device("cpu"))
    driver._gossip = side
    perform = driver._perform

    def later(*args: object) -> object:
        side.progress += 1  # the gossip thread was faster
        return perform(*args)

    driver._perform = later

    def program() -> Any:
        yield AwaitGossip()

    assert in_time(lambda: driver.run(program()))


def test_gossip_effects_do_not_belong_on_the_training_thread() -> None:
    def program() -> Any:
        yield Invite(1)

    with pytest.raises(TypeError, match="gossip program"):
        ProcessGroupDriver().run(program())
