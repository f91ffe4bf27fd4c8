"""The cases of the benchmark: what is done to a training, and for how long."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from faults import inject
from faults.inject import Fault
from faults.run import Run
from faults.settings import Settings

LEARNERS = 8
STEP = 0.1
EPOCH = 20.0
"""Seconds that an epoch lasts about, without faults."""


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
    """

    learners: int = LEARNERS
    faults: tuple[Fault, ...] = (inject.kill,)
    count: int = 200
    every: float = 15.0
    rounds: int = 4
    calm: float = 30.0
    seed: int = 0
    step: float = STEP
    heartbeat: float = 10.0

    @property
    def settings(self) -> Settings:
        """How the learners train."""
        return Settings(
            learners=self.learners,
            seed=self.seed,
            step_seconds=self.step,
            items=round(self.learners * EPOCH / (self.step + 0.005)),
            heartbeat=self.heartbeat,
        )


def torment(directory: Path, plan: Plan) -> None:
    """Run a training by the plan; `figures.summary` says what has come of it.

    Raises:
        HangError: learners hang.
    """
    generator = random.Random(plan.seed)
    run = Run(directory, plan.settings)
    try:
        run.until(run.all_step, 600.0)
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
        raise
    finally:
        run.kill()


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


def undisturbed(directory: Path, plan: Plan, epochs: int) -> None:
    """Run the same training without faults, for as many epochs.

    Raises:
        HangError: learners hang.
    """
    settings = plan.settings
    run = Run(directory, Settings(**{**vars(settings), "epochs": epochs}))
    try:
        run.note("end", status=run.wait(24 * 3600.0))
    finally:
        run.kill()
