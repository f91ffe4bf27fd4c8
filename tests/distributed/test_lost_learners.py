"""Learners that die or freeze, wherever the others wait: they are named, and soon.

`EVERY_RANK=1` loses each learner in each place rather than one after the other, and
`SILENCE=30` waits as long as users do.
"""

import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import launch
from torch import nn

from espnet_distopt import Session
from espnet_distopt.distributed.collectives import Collectives
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import PeerLostError

SIZE = 3
SILENCE = float(os.environ.get("SILENCE", "3"))
ALGORITHMS = ("allreduce", "dpsgd", "d1d_model")
PLACES = ("step", "exchange", "epoch's end", "consensus")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
CASES = list(itertools.product(ALGORITHMS, PLACES, SIGNALS))


def lose_in_exchange(die: Callable[[], None]) -> None:
    """Lose this learner when it is about to send, after the first few messages."""
    left = iter(range(4))

    def dying(send: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if next(left, None) is None:
                die()
            return send(*args)

        return wrapped

    Collectives.begin = dying(Collectives.begin)  # type: ignore[method-assign]


def train(
    died: str, algorithm: str, place: str, number: int, victim: int
) -> tuple[float, str]:
    """Train; return how long the loss of `victim` held this learner up, and its error.

    The time is from when the victim touched the file `died`.
    """
    rank = dist.get_rank()

    def die() -> None:
        Path(died).touch()
        os.kill(os.getpid(), number)

    dies_in = place if rank == victim else None
    model = nn.Linear(50, 10)
    optimizer = torch.optim.Adam(model.parameters())
    driver = ProcessGroupDriver(silence=SILENCE)
    try:
        with Session(model, optimizer, algorithm, driver) as s:
            if dies_in == "exchange":
                lose_in_exchange(die)
            for epoch in range(1000):
                for step in range(30):
                    optimizer.zero_grad()
                    model(torch.ones(2, 50)).sum().backward()
                    optimizer.step()
                    if dies_in == "step" and (epoch, step) == (1, 10):
                        die()
                    s.step()
                if dies_in == "epoch's end" and epoch == 1:
                    die()
                s.finish()
                if dies_in == "consensus" and epoch == 1:
                    die()
                s.enter_consensus()
                s.leave_consensus()
    except PeerLostError as error:
        return time.time() - Path(died).stat().st_mtime, str(error)
    return 0.0, "nobody was missed"


def lose(case: tuple[str, str, int], victim: int, hosted: bool = False) -> list[str]:
    """Return what is wrong with how the others took the loss of `victim`."""
    with tempfile.TemporaryDirectory() as folder:
        args = (f"{folder}/died", *case, victim)
        found = launch(SIZE, train, *args, timeout=60, dying={victim}, hosted=hosted)
    names = f"learner {victim}", "the process that keeps" if hosted else "-"
    wrong = []
    for rank in set(range(SIZE)) - {victim}:
        seconds, error = found[rank]
        named = any(name in error.partition(" has failed: ")[2] for name in names)
        if not named or seconds > SILENCE + 10:
            wrong.append(f"{case}, {victim} lost, {rank}: {seconds:.1f} s, {error}")
    return wrong


def wrongs(lost: list[Callable[[], list[str]]]) -> list[str]:
    with ThreadPoolExecutor(4) as pool:
        return list(itertools.chain(*pool.map(lambda case: case(), lost)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_lost_learner_is_named_wherever_one_waits(algorithm: str) -> None:
    every = bool(os.environ.get("EVERY_RANK"))
    cases = [case for case in CASES if case[0] == algorithm]
    lost = [
        partial(lose, case, victim)
        for number, case in enumerate(cases)
        for victim in range(SIZE)
        if every or victim == number % SIZE
    ]
    assert wrongs(lost) == []


def test_the_learner_that_keeps_the_store_is_named() -> None:
    cases = [("adpsgd", "step", s) for s in SIGNALS]
    cases += [("allreduce", "epoch's end", s) for s in SIGNALS]
    assert wrongs([partial(lose, case, 0, hosted=True) for case in cases]) == []


def wait_by_itself(number: int) -> str:
    """Barrier in a collective of the user's own, in which a learner is lost."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        driver = ProcessGroupDriver(silence=SILENCE)
        with Session(model, optimizer, "allreduce", driver):
            if dist.get_rank() == 1:
                os.kill(os.getpid(), number)
            dist.all_reduce(torch.ones(3))
    except PeerLostError as error:
        return str(error)
    return "nobody was missed"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_learner_lost_in_a_collective_of_the_users_is_named(number: int) -> None:
    found = launch(2, wait_by_itself, number, dying={1})
    assert "training loop's has failed: learner 1 has " in found[0]


def leave_at_once() -> str:
    """Leave the session; learner 0, which keeps the store, ends without a farewell."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "local_sgd"):
        time.sleep(0.5 * dist.get_rank())
    if dist.get_rank() == 0:
        os._exit(0)
    return "left"


def test_the_keeper_of_the_store_leaves_last() -> None:
    assert launch(3, leave_at_once, dying={0}, hosted=True)[1:] == ["left"] * 2
