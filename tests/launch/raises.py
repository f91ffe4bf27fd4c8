"""Learners in a loop of their own, one of which fails while the others train.

usage: raises.py DIR ALGORITHM HOW [TIMES]

In its fifth step, learner 1 raises an error (HOW is `raises`), or stops itself until
the others have given it up (`stalls`). The first TIMES of its processes (1) do so. The
others train until the next one has joined, or the one that was given up has noticed
that; or else until they are ended, for 100 s at most.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch.distributed as dist

from espnet_distopt.errors import PeerLostError
from tests.sessions import session, step


def main(folder: Path, algorithm: str, how: str, times: int = 1) -> None:
    dist.init_process_group("gloo")
    incarnation = int(os.environ.get("DISTOPT_INCARNATION", "0"))
    fails = dist.get_rank() == 1 and incarnation < times
    with session(algorithm, silence=2) as run:
        if incarnation == times:
            (folder / "over").touch()
        count, last = 0, time.monotonic() + 100
        while time.monotonic() < last and (fails or not (folder / "over").exists()):
            if fails and count == 5 and how == "raises":
                raise NameError("a typing error")
            if fails and count == 5:
                again = f"sleep 5; kill -CONT {os.getpid()}"
                subprocess.Popen(["sh", "-c", again], start_new_session=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            try:
                step(run)
            except PeerLostError:
                if fails:
                    (folder / "over").touch()
                raise
            count += 1
            time.sleep(0.02)


main(Path(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:]))
