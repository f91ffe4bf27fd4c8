"""Trainings with stretches of faults between calm ones, and undisturbed ones.

A seeded generator chooses each fault. `Plan` says which faults there are, how many and
how often.
"""

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulated.learners import Namespace
from emulated.namespaces import limit, plug

from faults.figures import Notes, broken, summary
from faults.run import Process, Run, Settings

SLOW_SECONDS = 5.0
"""Seconds for which a link is slow."""

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
    _note(run, "death", process, kind)
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
    _for_a_while(run, generator, (0.2, 0.6), "a short stop", _stop, _go_on)


def stop_long(run: Run, generator: random.Random) -> None:
    """Stop a learner for longer than the heartbeat allows, and let it go on."""
    _for_a_while(run, generator, (1.5, 2.5), "a long stop", _stop, _go_on)


def _stop(run: Run, process: Process) -> None:
    os.kill(process.pid, signal.SIGSTOP)


def _go_on(run: Run, process: Process) -> None:
    os.kill(process.pid, signal.SIGCONT)


def _for_a_while(
    run: Run,
    generator: random.Random,
    heartbeats: tuple[float, float],
    kind: str,
    begin: Callable[[Run, Process], None],
    end: Callable[[Run, Process], None],
) -> None:
    """Silence a random learner, and let it go on.

    Args:
        run: the run.
        generator: chooses the learner, and for how long.
        heartbeats: the bounds of that time, in heartbeats.
        kind: the name of the fault.
        begin: silences a learner.
        end: lets it go on.
    """
    seconds = generator.uniform(*heartbeats) * run.settings.heartbeat
    process = _victim(run, generator)
    _note(run, "stop", process, kind, seconds)
    with suppress(ProcessLookupError):
        begin(run, process)
        time.sleep(seconds)
        end(run, process)
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


def cut_briefly(run: Run, generator: random.Random) -> None:
    """Cut a learner's link for less than the heartbeat allows, and mend it."""
    _for_a_while(run, generator, (0.2, 0.6), "a short cut", _cut, _mend)


def cut_long(run: Run, generator: random.Random) -> None:
    """Cut a learner's link for longer than the heartbeat allows, and mend it."""
    _for_a_while(run, generator, (1.5, 2.0), "a long cut", _cut, _mend)


def _cut(run: Run, process: Process) -> None:
    plug(run.settings.namespaces[process.rank], False)


def _mend(run: Run, process: Process) -> None:
    plug(run.settings.namespaces[process.rank], True)


def slow_link(run: Run, generator: random.Random) -> None:
    """Give a learner's link half a megabit per second for a while."""
    process = _victim(run, generator)
    _note(run, "slow", process, "a slow link", SLOW_SECONDS)
    limit(run.settings.namespaces[process.rank], "500kbit")
    time.sleep(SLOW_SECONDS)
    limit(run.settings.namespaces[process.rank], "1000mbit")


def _note(
    run: Run, event: str, process: Process, kind: str, seconds: float | None = None
) -> None:
    """Note a fault just before it is injected."""
    run.records.read()
    run.note(
        event,
        kind=kind,
        rank=process.rank,
        incarnation=process.incarnation,
        seconds=seconds,
        stepped=process.first_step is not None,
    )


MIXED: tuple[Fault, ...] = (
    kill,
    kill_two,
    kill_joiner,
    kill_host,
    stop_briefly,
    stop_long,
)
"""The faults of the mixed case."""

LINKS: tuple[Fault, ...] = (cut_briefly, cut_long, slow_link)
"""The faults of the case with links."""


EPOCH = 20.0
"""Seconds that an epoch lasts about, without faults."""

SHORT_STEP = 0.004
"""Seconds that a step of an undisturbed training sleeps, which is not timed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A training with stretches of faults between calm ones.

    Attributes:
        learners: the number of learners.
        faults: the kinds of faults, one of which is drawn each time.
        count: the number of faults in all.
        every: the seconds from the begin of one fault to the begin of the next.
        rounds: the number of stretches of faults.
        calm: the seconds of a calm stretch; there is one more than rounds.
        seed: the seed of the faults, the model and the batches.
        step: the seconds that a step sleeps.
        heartbeat: the seconds of silence after which a learner is given up.
        places: the network namespaces of the learners; none means this machine's.
    """

    learners: int = 8
    faults: tuple[Fault, ...] = (kill,)
    count: int = 200
    every: float = 15.0
    rounds: int = 4
    calm: float = 30.0
    seed: int = 0
    step: float = 0.1
    heartbeat: float = 10.0
    places: tuple[Namespace, ...] = ()

    @property
    def settings(self) -> Settings:
        """How the learners train."""
        return Settings(
            learners=self.learners,
            seed=self.seed,
            step_seconds=self.step,
            items=round(self.learners * EPOCH / (self.step + 0.005)),
            heartbeat=self.heartbeat,
            namespaces=tuple(str(place.namespace) for place in self.places),
            interface=self.places[0].interface if self.places else "lo",
        )


def torment(directory: Path, plan: Plan) -> dict[str, Any]:
    """Run a training by the plan, and return its figures.

    Hanging learners end the run, and are among the figures.
    """
    generator = random.Random(plan.seed)
    run = Run(directory, plan.settings, _master(plan.places))
    try:
        run.until(run.all_step)
        _calm(run, plan.calm)
        for number in range(plan.rounds):
            count = plan.count * (number + 1) // plan.rounds
            count -= plan.count * number // plan.rounds
            _round(run, plan, generator, count)
            run.until(run.all_step)
            _calm(run, plan.calm)
            if run.ended:
                break
        run.note("end", status=run.end())
    except BaseException as error:
        run.note("end", status=None, error=f"{type(error).__name__}: {error}")
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        run.kill()
    return summary(Notes(directory))


def _master(places: Sequence[Namespace]) -> str | None:
    """Return a free address for the store, which emulated machines reach."""
    if not places:
        return None
    with socket.create_server((places[0].store, 0)) as free:
        return f"{places[0].store}:{free.getsockname()[1]}"


def _calm(run: Run, seconds: float) -> None:
    run.note("calm begins")
    run.calm(seconds)
    run.note("calm ends")


def _round(run: Run, plan: Plan, generator: random.Random, count: int) -> None:
    begin = run.note("torment begins")
    for number in range(count):
        generator.choice(plan.faults)(run, generator)
        run.calm(begin + plan.every * (number + 1) - time.monotonic())
        if run.ended:
            break
    run.note("torment ends")


def undisturbed(directory: Path, plan: Plan, epochs: int) -> dict[str, Any]:
    """Run a training without faults for as many epochs, and return its final loss.

    Raises:
        HangError: learners hang.
    """
    settings = replace(plan.settings, epochs=epochs, step_seconds=SHORT_STEP)
    run = Run(directory, settings)
    try:
        run.note("end", status=run.wait(24 * 3600.0))
    finally:
        run.kill()
    return final(directory)


def final(directory: Path) -> dict[str, Any]:
    """Return the final loss of a training without faults, from its notes."""
    notes = Notes(directory)
    return {
        "final_loss": notes.final_loss(),
        "epochs": notes.batches()["epochs"],
        "broken": broken(notes),
    }
