"""ESPnet learners of which one is killed and started again, as the launcher does it.

The processes come from the fork server, which has imported ESPnet already.
"""

import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from espnet_distopt.bin import asr_train
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.launch_variables import INCARNATION
from espnet_distopt.launch.plan import Plan
from tests.espnet.training.learners import become_learner, read
from tests.fork_server import context


@dataclass(frozen=True)
class Death:
    """How a learner dies, and where the others wait for its replacement.

    Attributes:
        directory: where a file tells that the replacement has exchanged.
        victim: the learner whose first process kills itself, in this epoch.
        when: its step there; or "gossip" or "validation", whose end it is.
        stay: the others stay in their second step of this epoch until the replacement
            has exchanged with one of them; None: they do not wait.
    """

    directory: Path
    victim: int
    epoch: int
    when: int | str
    stay: int | None

    def prepare(self, rank: int, incarnation: int) -> None:
        """Let this process do its part."""
        from espnet_distopt.espnet.training.epoch import Epoch
        from espnet_distopt.espnet.training.run import Run
        from espnet_distopt.session import Session

        joined = self.directory / f"{self.victim}.joined"
        step, finish, end_epoch = Epoch._step, Session.finish, Run.end_epoch

        def pass_by(epoch: int, place: int | str) -> None:
            where = rank, incarnation, epoch, place
            if where == (self.victim, 0, self.epoch, self.when):
                os.kill(os.getpid(), signal.SIGKILL)

        def stepping(epoch: Epoch, batches: int) -> dict[str, float]:
            assert epoch.training is not None
            session, number = epoch.training.session, epoch._number
            count = session.learner.steps - session._lifecycle.epoch_start + 1
            pass_by(number, count)
            figures = step(epoch, batches)
            while incarnation and not joined.exists():
                if figures["exchanges"]:
                    joined.write_text(str(number))
                time.sleep(0.01)
                figures = step(epoch, batches)
            waits = rank != self.victim and (number, count) == (self.stay, 2)
            while waits and not joined.exists():
                time.sleep(0.01)
                figures = step(epoch, batches)
            return figures

        def finishing(session: Session) -> bool:
            ended = finish(session)
            pass_by(session._lifecycle.epochs, "gossip")
            return ended

        def ending(run: Run, reporter: Any) -> None:
            end_epoch(run, reporter)
            pass_by(reporter.get_epoch(), "validation")

        Epoch._step = stepping  # type: ignore[method-assign]
        Session.finish = finishing  # type: ignore[method-assign]
        Run.end_epoch = ending  # type: ignore[method-assign]


def trained(
    options: list[str],
    size: int,
    log: Path,
    death: Death | None = None,
    ends: list[int] | None = None,
) -> str:
    """Train, and start the victim of `death` again; return what all have printed.

    If nobody waits for it, it is started again when the others have ended. The last
    exit codes must be these, or 0.
    """
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
            store.append(keys.ENDED, f"{death.victim}.0 ")  # as the launcher does
            others = [r for r in range(size) if r != death.victim]
            for rank in others if death.stay is None else ():
                learners[rank].join(200)
            learners[death.victim] = start(death.victim, 1)
        for learner in learners:
            learner.join(200)
        codes = [learner.exitcode for learner in learners]
        assert codes == (ends or [0] * size), read(log)
        return read(log)
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
    become_learner(Path(f"{log}.{rank}"))
    os.environ |= variables
    assert os.environ[INCARNATION] == str(incarnation)
    if death is not None:
        death.prepare(rank, incarnation)
    asr_train.main([*options, "--multiprocessing_distributed", "false"])
