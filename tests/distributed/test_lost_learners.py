"""Learners that die or freeze, wherever the others wait.

They are named, and soon; or the others go on, and all of them agree.

`EVERY_RANK=1` loses each learner in each place rather than one after the other, and
`SILENCE=30` waits as long as users do.
"""

import itertools
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from processes import Lines, launch
from torch import nn

from espnet_distopt import Session
from espnet_distopt.distributed.channel import Channel
from espnet_distopt.distributed.collectives import Collectives
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import PeerLostError
from tests.sessions import session

SIZE = 3
SILENCE = float(os.environ.get("SILENCE", "3"))
ALGORITHMS = ("adpsgd", "allreduce", "dpsgd", "d1d_model")
SURVIVES = "adpsgd"
"""The one whose others go on without a lost learner; those of the rest end."""

PLACES = ("step", "exchange", "epoch's end", "consensus")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
CASES = list(itertools.product(ALGORITHMS, PLACES, SIGNALS))


class Seen(NamedTuple):
    """What a learner has seen of the loss of another one.

    Attributes:
        seconds: for which the loss has held it up, if that has ended its training.
        error: which has done so.
        consensus: the last one.
        members: the number of learners at the end.
        lines: its log.
    """

    seconds: float
    error: str
    consensus: list[float]
    members: int
    lines: list[str]


def lose_in_exchange(die: Callable[[], None]) -> None:
    """Lose this learner when it is about to send the next message, or a part of it."""

    def dying(*args: Any) -> Any:
        if args[1]:
            die()
        return 0

    Collectives.begin = dying  # type: ignore[method-assign]
    Channel._send = dying  # type: ignore[method-assign]


def train(died: str, algorithm: str, place: str, number: int, victim: int) -> Seen:
    """Train in four epochs, in the second of which `victim` is lost.

    It touches the file `died` before that.
    """
    rank, handler = dist.get_rank(), Lines()
    logging.getLogger().addHandler(handler)

    def die() -> None:
        Path(died).touch()
        os.kill(os.getpid(), number)

    def lose(here: str, epoch: int) -> None:
        if (rank, here, epoch) == (victim, place, 1):
            die()

    torch.manual_seed(rank)
    model = nn.Linear(50, 10)
    optimizer = torch.optim.Adam(model.parameters())
    driver = ProcessGroupDriver(silence=SILENCE)
    try:
        with Session(model, optimizer, algorithm, driver) as s:
            for epoch in range(4):
                for step in range(20):
                    time.sleep(0.005)
                    optimizer.zero_grad()
                    model(torch.randn(2, 50)).sum().backward()
                    optimizer.step()
                    if step == 10:
                        lose("step", epoch)
                        if (rank, place, epoch) == (victim, "exchange", 1):
                            lose_in_exchange(die)
                    s.step()
                lose("epoch's end", epoch)
                s.finish()
                lose("consensus", epoch)
                s.enter_consensus()
                consensus = s.learner.params.tolist()
                s.leave_consensus()
            return Seen(0, "", consensus, len(s.learner.members.ranks), handler.lines)
    except PeerLostError as error:
        seconds = time.time() - Path(died).stat().st_mtime
        return Seen(seconds, str(error), [], 0, handler.lines)


def lose(case: tuple[str, str, int], victim: int, hosted: bool = False) -> list[str]:
    """Return what is wrong with how the others took the loss of `victim`."""
    goes_on = case[0] == SURVIVES and not hosted
    size = SIZE + goes_on
    with tempfile.TemporaryDirectory() as folder:
        args = (f"{folder}/died", *case, victim)
        found = launch(size, train, *args, timeout=60, dying={victim}, hosted=hosted)
    names = f"learner {victim}", "the process that keeps" if hosted else "-"
    others = [seen for rank, seen in enumerate(found) if rank != victim]
    wrong = []
    for seen in others:
        named = any(name in seen.error.partition(" has failed: ")[2] for name in names)
        good = named and seen.seconds < SILENCE + 10
        if goes_on:
            good = (seen.members, len(seen.lines)) == (size - 1, 1)
            good = good and seen.consensus == others[0].consensus
        wrong += [] if good else [f"{case}, {victim} lost: {seen}"]
    return wrong


def wrongs(lost: list[Callable[[], list[str]]]) -> list[str]:
    with ThreadPoolExecutor(4) as pool:
        return list(itertools.chain(*pool.map(lambda case: case(), lost)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_learner_is_lost_wherever_one_waits(algorithm: str) -> None:
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
    try:
        with session("allreduce", silence=SILENCE):
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
    with session("local_sgd"):
        time.sleep(0.5 * dist.get_rank())
    if dist.get_rank() == 0:
        os._exit(0)
    return "left"


def test_the_keeper_of_the_store_leaves_last() -> None:
    assert launch(3, leave_at_once, dying={0}, hosted=True)[1:] == ["left"] * 2
