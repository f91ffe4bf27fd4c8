"""Trainings with stretches of faults between calm ones, and undisturbed ones."""

import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulated.learners import Namespace

from faults import inject
from faults.figures import summary
from faults.inject import Fault
from faults.invariants import broken
from faults.notes import Notes
from faults.run import Run
from faults.settings import Settings

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
    faults: tuple[Fault, ...] = (inject.kill,)
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
