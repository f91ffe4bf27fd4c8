"""Several learners of one ESPnet training, as real processes that start quickly.

An injection changes a learner's process before it trains; it can be pickled.
"""

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from espnet_distopt.session import Session
from tests.fork_server import PRELOAD, context
from tests.processes import share_a_gpu

Injection = Callable[[int], None]

PATIENCE = 0.5
"""Seconds that learners wait in a step for one that is about to be killed."""

PRELOAD.extend(["espnet_distopt.recipes.models.ocr.task", "tests.espnet.toy"])
PRELOAD.append("espnet_distopt.espnet.training.tasks")


def trained(
    options: list[str],
    size: int,
    folder: Path,
    injection: Injection | None = None,
    ends: int | list[int] = 0,
    task: type | str | None = None,
) -> str:
    """Train by `size` learners; return what all have printed, of runs before, too.

    All must end with one code, or each with its own (negative: the signal).
    """
    meet, log = folder / f"meet.{secrets.token_hex(4)}", folder / "log"
    codes = train(options, size, meet, log, injection, task=task)
    assert codes == (ends if isinstance(ends, list) else [ends] * size), read(log)
    return read(log)


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


def become_learner(log: Path) -> None:
    """Give this process a group and a log of its own, and one thread."""
    os.setpgid(0, 0)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def _learn(
    rank: int,
    size: int,
    options: list[str],
    rendezvous: Path,
    log: Path,
    injection: Injection | None,
    task: Any = None,
) -> None:
    become_learner(Path(f"{log}.{rank}"))
    from espnet_distopt.espnet.models.quick_import import importing_espnet
    from tests.espnet.toy import be_learner

    with importing_espnet():
        from espnet2.tasks.asr import ASRTask

        from espnet_distopt.espnet.training.tasks import DistoptASRTask

    if injection is not None:
        injection(rank)
    where = be_learner(rank, size, rendezvous)
    chosen = ASRTask if task == "stock" else task or DistoptASRTask
    chosen.main(cmd=[*options, *where])


def load(path: Path) -> dict[str, torch.Tensor]:
    """Load a model to the CPU, where the learners' own states are, too."""
    return torch.load(path, map_location="cpu", weights_only=True)


def assert_same(one: Path, other: Path) -> None:
    left, right = load(one), load(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def before(owner: Any, name: str, act: Callable[..., object]) -> None:
    """Let a method of a class do something before it does its own."""
    method = getattr(owner, name)

    def acting(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, acting)


@dataclass(frozen=True)
class SignalAt:
    """An injection: a signal to oneself in one step, of one learner or of all."""

    step: int
    victim: int | None
    number: int

    def __call__(self, rank: int) -> None:
        def signal_oneself(session: Session) -> None:
            if session.learner.steps + 1 == self.step:
                os.kill(os.getpid(), self.number)

        if self.victim in (None, rank):
            before(Session, "step", signal_oneself)


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
        mine = self.victim in (None, rank)
        before(Session, "step", self._kill if mine else self._wait)

    def _kill(self, session: Session) -> None:
        if session.learner.steps + 1 == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
        self.begun.value = session.learner.steps + 1

    def _wait(self, session: Session) -> None:
        end, steps = time.monotonic() + PATIENCE, session.learner.steps
        while self.begun.value <= steps and self.begun.value < self.step - 1:
            if time.monotonic() > end:
                return
            time.sleep(0.005)


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
        def move(session: Session) -> None:
            session.learner.params.add_(0.01)

        if rank == 1:
            before(Session, "enter_consensus", move)


@dataclass(frozen=True)
class Sharing:
    """An injection: NCCL connects learners on one GPU; and another one after that."""

    then: Injection | None = None

    def __call__(self, rank: int) -> None:
        share_a_gpu(rank)
        if self.then is not None:
            self.then(rank)
