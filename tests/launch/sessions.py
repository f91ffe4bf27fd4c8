"""Three sessions, one after another, in the first of which a learner is replaced.

usage: sessions.py DIR [between]

Learner 1 kills itself in the second epoch of the first session. The others train on in
that epoch until its replacement has joined. With `between` it kills itself after the
first session instead. Each process writes DIR/RANK.INCARNATION:
its parameter after each session.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from tests.sessions import session, step

EPOCHS = 3


def main(folder: Path, between: bool) -> None:
    dist.init_process_group("gloo")
    name = f"{dist.get_rank()}.{os.environ['DISTOPT_INCARNATION']}"
    after = []
    for number, algorithm in enumerate(("adpsgd", "bmuf", "adpsgd")):
        with session(algorithm, 4, lr=0.01, silence=10) as run:
            for epoch in range(run.first_epoch, EPOCHS):
                for count in range(1000):
                    here = (name, number, epoch, count) == ("1.0", 0, 1, 5)
                    if here and not between:
                        os.kill(os.getpid(), signal.SIGKILL)
                    step(run)
                    if (number, epoch, between) == (0, 1, False):
                        (folder / f"joined.{name}").touch()
                        time.sleep(0.02)
                    elif count >= 10:
                        break
                    if count >= 10 and (folder / "joined.1.1").exists():
                        break
                with run.consensus():
                    consensus = run.learner.params.tolist()
        after.append(consensus)
        if name == "1.0" and between:
            os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"new.{name}").write_text(json.dumps(after))
    (folder / f"new.{name}").rename(folder / name)


main(Path(sys.argv[1]), "between" in sys.argv[2:])
