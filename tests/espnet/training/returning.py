"""ESPnet learners of which one is killed and started again, as the launcher does it.

The processes come from the fork server, which has imported ESPnet already.
"""

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch.distributed as dist

from espnet_distopt.distributed.launch_variables import INCARNATION
from espnet_distopt.launch.plan import Plan
from tests.espnet.training.learners import read
from tests.fork_server import context


@dataclass(frozen=True)
class Death:
    """How a learner dies, and what the others do then.

    Attributes:
        directory: where a file tells that the replacement has exchanged.
        victim: the rank of the learner whose first process kills itself by SIGKILL.
        epoch: the epoch in which it does so.
        step: its step in the epoch. The others stay in their second step of the epoch
            until the replacement has exchanged with one of them. With None it dies
            when the gossip of the epoch is over, and nobody stays.
    """

    directory: Path
    victim: int
    epoch: int
    step: int | None

    def prepare(self, rank: int, incarnation: int) -> None:
        """Let this process do its part."""
        from espnet_distopt.espnet.training.epoch import DistoptEpoch
        from espnet_distopt.session import Session

        joined = self.directory / f"{self.victim}.joined"
        step, finish = DistoptEpoch.step, Session.finish
        dies = (rank, incarnation) == (self.victim, 0)

        def stepping(epoch: DistoptEpoch, batches: int) -> dict[str, float]:
            session = epoch._session
            here = epoch.reporter.get_epoch() == self.epoch and self.step is not None
            number = session.learner.steps - session._lifecycle.epoch_start + 1
            if dies and here and number == self.step:
                os.kill(os.getpid(), signal.SIGKILL)
            figures = step(epoch, batches)
            while incarnation and not joined.exists():
                if figures["exchanges"]:
                    joined.touch()
                time.sleep(0.01)
                figures = step(epoch, batches)
            while here and rank != self.victim and number == 2 and not joined.exists():
                time.sleep(0.01)
                figures = step(epoch, batches)
            return figures

        def finishing(session: Session) -> bool:
            ended = finish(session)
            if dies and (self.epoch, None) == (session._lifecycle.epochs, self.step):
                os.kill(os.getpid(), signal.SIGKILL)
            return ended

        DistoptEpoch.step = stepping  # type: ignore[method-assign]
        Session.finish = finishing  # type: ignore[method-assign]


def train(
    options: list[str], size: int, log: Path, death: Death | None = None
) -> list[int]:
    """Train, and start the victim of `death` again; return the last exit codes."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(rank: int, incarnation: int) -> BaseProcess:
        plan = Plan((size,), 0, "127.0.0.1", store.port, "here")
        variables = plan.variables(rank, incarnation, store.port)
        process = context().Process(
            target=_learn, args=(rank, incarnation, variables, options, log, death)
        )
        process.start()
        return process

    learners = [start(rank, 0) for rank in range(size)]
    try:
        if death is not None:
            learners[death.victim].join(200)
            assert learners[death.victim].exitcode == -signal.SIGKILL, read(log)
            learners[death.victim] = start(death.victim, 1)
        for learner in learners:
            learner.join(200)
        codes = [learner.exitcode for learner in learners]
        if None in codes:
            pytest.fail(f"learners hang, exit codes so far {codes}:\n{read(log)}")
        return codes
    finally:
        for learner in learners:
            learner.kill()
            learner.join()


def _learn(
    rank: int,
    incarnation: int,
    variables: dict[str, str],
    options: list[str],
    log: Path,
    death: Death | None,
) -> None:
    os.setpgid(0, 0)
    with Path(f"{log}.{rank}").open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ |= {**variables, "OMP_NUM_THREADS": "1"}
    assert os.environ[INCARNATION] == str(incarnation)
    import torch

    from espnet_distopt.bin import asr_train

    torch.set_num_threads(1)
    if death is not None:
        death.prepare(rank, incarnation)
    asr_train.main([*options, "--multiprocessing_distributed", "false"])
