"""Several learners of one ESPnet training, as real processes that start quickly."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import PRELOAD, context
from tests.processes import share_a_gpu

Injection = Callable[[int], None]

PATIENCE = 0.5
"""Seconds that learners wait in a step for one that is about to be killed."""

PRELOAD.extend(["espnet_distopt.recipes.models.ocr.task", "tests.espnet.toy"])


def train(
    options: list[str],
    size: int,
    rendezvous: Path,
    log: Path,
    injection: Injection | None = None,
    timeout: float = 100,
    task: type | str | None = None,
) -> list[int]:
    """Train by `size` learners; returns their exit codes (negative: the signal).

    The task is the one for speech, if none is given, and "stock" is ESPnet's.
    """
    processes = [
        context().Process(
            target=_learn, args=(r, size, options, rendezvous, log, injection, task)
        )
        for r in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
    if None in codes:
        pytest.fail(f"learners hang, exit codes so far {codes}; log:\n{read(log)}")
    return [int(code) for code in codes if code is not None]


def read(log: Path) -> str:
    return "".join(
        path.read_text() for path in sorted(log.parent.glob(f"{log.name}.*"))
    )


def _learn(
    rank: int,
    size: int,
    options: list[str],
    rendezvous: Path,
    log: Path,
    injection: Injection | None,
    task: Any = None,
) -> None:
    os.setpgid(0, 0)
    with Path(f"{log}.{rank}").open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from espnet_distopt.espnet.models.quick_import import importing_espnet
    from tests.espnet.toy import be_learner

    with importing_espnet():
        from espnet2.tasks.asr import ASRTask

        from espnet_distopt.espnet.training.tasks import DistoptASRTask

    torch.set_num_threads(1)
    if injection is not None:
        injection(rank)
    where = be_learner(rank, size, rendezvous)
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    chosen = ASRTask if task == "stock" else task or DistoptASRTask
    chosen.main(cmd=[*options, *where])


def kill_at_step(step: int, victim: int | None = None) -> Injection:
    """Return an injection: SIGKILL in the given step, of one learner or of all.

    The others wait a while for the victim in each step, because on a loaded machine
    they would take the victim's batches before it comes to that step.
    """
    return _Kill(step, victim)


class _Kill:
    def __init__(self, step: int, victim: int | None) -> None:
        self.step, self.victim = step, victim
        self.begun = context().Value("i", 0)

    def __call__(self, rank: int) -> None:
        from espnet_distopt.session import Session

        step = Session.step

        def killing(session: Session) -> None:
            if session.learner.steps + 1 == self.step:
                os.kill(os.getpid(), signal.SIGKILL)
            self.begun.value = session.learner.steps + 1
            step(session)

        def waiting(session: Session) -> None:
            end = time.monotonic() + PATIENCE
            while self._is_behind(session.learner.steps) and time.monotonic() < end:
                time.sleep(0.005)
            step(session)

        mine = self.victim in (None, rank)
        Session.step = killing if mine else waiting  # type: ignore[method-assign]

    def _is_behind(self, steps: int) -> bool:
        return self.begun.value <= steps and self.begun.value < self.step - 1


class NanLoss:
    """An injection: learner 1's gradients are NaN in its first step."""

    def __call__(self, rank: int) -> None:
        if rank != 1:
            return
        from espnet2.asr.espnet_model import ESPnetASRModel

        forward, calls = ESPnetASRModel.forward, []

        def poisoned(model: object, *args: object, **kwargs: object) -> object:
            loss, stats, weight = forward(model, *args, **kwargs)
            calls.append(1)
            return (loss * float("nan") if len(calls) == 1 else loss), stats, weight

        ESPnetASRModel.forward = poisoned


class Apart:
    """An injection: learner 1 ends each epoch away from learner 0.

    Two learners are equal there if they have exchanged after the last step of both.
    """

    def __call__(self, rank: int) -> None:
        from espnet_distopt.session import Session

        if rank != 1:
            return
        enter_consensus = Session.enter_consensus

        def moved(session: Session) -> float:
            session.learner.params.add_(0.01)
            return enter_consensus(session)

        Session.enter_consensus = moved  # type: ignore[method-assign]


class Sharing:
    """An injection: NCCL connects learners on one GPU; and another one after that."""

    def __init__(self, then: Injection | None = None) -> None:
        self.then = then

    def __call__(self, rank: int) -> None:
        share_a_gpu(rank)
        if self.then is not None:
            self.then(rank)
