"""Learners have forked processes that outlive them, as DataLoaders fork workers.

The others wait for nothing but the end of the dead one's connections: the silence is
longer than a test may take.
"""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import launch
from torch import nn

from espnet_distopt import Session
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import PeerLostError

SILENCE = 1000.0


def fork(until: Path) -> None:
    """Fork a process that does nothing until a file exists."""
    if os.fork() == 0:
        deadline = time.monotonic() + 100
        while not until.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os._exit(0)


def train(algorithm: str, victim: int, over: str) -> str:
    """Train until the loss of `victim` is known; return what is said of it."""
    rank, model = dist.get_rank(), nn.Linear(50, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    driver = ProcessGroupDriver(silence=SILENCE)
    try:
        with Session(model, optimizer, algorithm, driver) as session:
            for step in range(100_000):
                optimizer.zero_grad()
                model(torch.ones(2, 50)).sum().backward()
                optimizer.step()
                session.step()
                time.sleep(0.005)
                if step == 10:  # All of them do, and it disturbs nobody.
                    fork(Path(over))
                if rank == victim and step == 20:
                    os.kill(os.getpid(), signal.SIGKILL)
                if victim not in session.driver.members.ranks:
                    return fate(driver, victim)
    except PeerLostError as error:
        return str(error)
    return "nobody was missed"


def fate(driver: ProcessGroupDriver, victim: int) -> str:
    assert driver._liveness is not None
    key = driver._liveness.membership.fate_key(victim)
    return bytes(driver._liveness._store.get(key)).decode()


@pytest.mark.parametrize("algorithm", ["adpsgd", "allreduce", "local_sgd"])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_learner_is_seen_while_what_it_has_forked_lives(
    algorithm: str, victim: int, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    try:
        found = launch(
            3, train, algorithm, victim, str(over), timeout=40, dying={victim}
        )
    finally:
        over.touch()
    for rank in {0, 1, 2} - {victim}:
        assert f"learner {victim} has died: its process is gone" in found[rank]


def test_the_death_of_the_keeper_of_the_store_is_seen_while_its_child_lives(
    tmp_path: Path,
) -> None:
    over = tmp_path / "over"
    try:
        found = launch(
            2, train, "adpsgd", 0, str(over), timeout=40, dying={0}, hosted=True
        )
    finally:
        over.touch()
    assert "the rendezvous store is gone" in found[1]
