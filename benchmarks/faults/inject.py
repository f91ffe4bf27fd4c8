"""Faults that are injected into a run, each of them chosen by a seeded generator."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from faults.records import Process
from faults.run import Run

Fault = Callable[[Run, random.Random], None]
"""Does something to a run, and notes it; it returns when that is over."""


def _victim(run: Run, generator: random.Random, among: range | None = None) -> Process:
    """Return the process of a random learner, which may be starting or joining."""
    while True:
        rank = generator.choice(among or range(run.settings.learners))
        process = run.latest(rank)
        if process is not None and run.lives(process):
            return process
        time.sleep(0.05)


def _kill(run: Run, process: Process, kind: str) -> None:
    run.records.read()
    stepped = process.first_step is not None
    run.note(
        "death",
        kind=kind,
        rank=process.rank,
        incarnation=process.incarnation,
        stepped=stepped,
    )
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def kill(run: Run, generator: random.Random) -> None:
    """Kill a random learner by SIGKILL."""
    _kill(run, _victim(run, generator), "kill")


def kill_two(run: Run, generator: random.Random) -> None:
    """Kill two learners at once, so that two join at about the same time."""
    first = _victim(run, generator)
    others = [r for r in range(run.settings.learners) if r != first.rank]
    second = run.latest(generator.choice(others))
    _kill(run, first, "two at once")
    if second is not None:
        _kill(run, second, "two at once")


def kill_joiner(run: Run, generator: random.Random) -> None:
    """Kill a learner, and its replacement while that starts, joins or begins."""
    first = _victim(run, generator)
    _kill(run, first, "then its replacement")
    second = _replacement(run, first)
    event = generator.choice(["process", "session", "begun"])
    run.until(lambda: _noted(run, second, event) or not run.lives(second))
    time.sleep(generator.uniform(0, 0.5))
    _kill(run, second, f"a replacement after its '{event}'")


def kill_host(run: Run, generator: random.Random) -> None:
    """Kill a learner, and that which its replacement asks first, as it asks."""
    first = _victim(run, generator)
    _kill(run, first, "then its host")
    second = _replacement(run, first)
    run.until(lambda: _noted(run, second, "session") or not run.lives(second))
    time.sleep(generator.uniform(0, 0.3))
    host = run.latest((first.rank + 1) % run.settings.learners)
    if host is not None:
        _kill(run, host, "a host")


def stop_briefly(run: Run, generator: random.Random) -> None:
    """Stop a learner for less than the heartbeat allows, and let it go on."""
    heartbeat = run.settings.heartbeat
    _stop(run, generator, generator.uniform(0.2, 0.6) * heartbeat, "a short stop")


def stop_long(run: Run, generator: random.Random) -> None:
    """Stop a learner for longer than the heartbeat allows, and let it go on."""
    heartbeat = run.settings.heartbeat
    _stop(run, generator, generator.uniform(1.5, 2.5) * heartbeat, "a long stop")


def _stop(run: Run, generator: random.Random, seconds: float, kind: str) -> None:
    process = _victim(run, generator)
    run.records.read()
    run.note(
        "stop",
        kind=kind,
        rank=process.rank,
        incarnation=process.incarnation,
        seconds=seconds,
        stepped=process.first_step is not None,
    )
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGCONT)
    run.note("continued", rank=process.rank, incarnation=process.incarnation)


def _replacement(run: Run, dead: Process) -> Process:
    """Wait for the process that takes the place of a dead one."""

    def found() -> bool:
        process = run.latest(dead.rank)
        return process is not None and process.incarnation > dead.incarnation

    run.until(found)
    process = run.latest(dead.rank)
    assert process is not None
    return process


def _noted(run: Run, process: Process, event: str) -> bool:
    run.records.read()
    return bool(process.of(event))


MIXED: tuple[Fault, ...] = (
    kill,
    kill_two,
    kill_joiner,
    kill_host,
    stop_briefly,
    stop_long,
)
"""The faults of the mixed case."""
