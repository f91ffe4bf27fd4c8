"""A learner of an ESPnet training that is killed, and joins again.

usage: returning.py DIR DEATH OPTION...

DEATH is RANK:EPOCH:STEP: the first process of that learner kills itself by SIGKILL in
that step of that epoch. The others stay in their second step of the epoch until its
replacement has made a step, and so does the replacement until it has exchanged. With
RANK:EPOCH:end it dies when the epoch's training is over, and nobody waits.

OPTION are those of `espnet_distopt.bin.asr_train`.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from espnet_distopt.bin import asr_train
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.espnet.training.epoch import DistoptEpoch
from espnet_distopt.session import Session

torch.set_num_threads(1)
directory, (victim, epoch, when) = Path(sys.argv[1]), sys.argv[2].split(":")
rank = os.environ["RANK"]
joined = directory / f"{victim}.joined"
step, finish = DistoptEpoch.step, Session.finish


def stepping(self: DistoptEpoch, batches: int) -> dict[str, float]:
    """Make a step; die in it, or stay in it."""
    session = self._session
    here = str(session._lifecycle.epochs + 1) == epoch
    number = session.learner.steps - session._lifecycle.epoch_start + 1
    if (rank, incarnation()) == (victim, 0) and here and str(number) == when:
        os.kill(os.getpid(), signal.SIGKILL)
    figures = step(self, batches)
    if incarnation() and not joined.exists():
        while not figures["exchanges"]:
            time.sleep(0.01)
            figures = step(self, batches)
        joined.touch()
    if here and when != "end" and rank != victim and number == 2:
        while not joined.exists():
            time.sleep(0.01)
            figures = step(self, batches)
    return figures


def finishing(session: Session) -> bool:
    """End an epoch; die after that."""
    ended = finish(session)
    here = str(session._lifecycle.epochs) == epoch
    if (rank, incarnation(), when) == (victim, 0, "end") and here:
        os.kill(os.getpid(), signal.SIGKILL)
    return ended


DistoptEpoch.step = stepping  # type: ignore[method-assign]
Session.finish = finishing  # type: ignore[method-assign]
asr_train.main(sys.argv[3:])
