"""A stand-in for a learner: it waits, and does what the files of its folder tell it to.

usage: worker.py DIR [WHAT]

Each process writes its variables to DIR/RANK.INCARNATION, and its pid and that of a
child of its own to DIR/RANK.pids. It ends with the status in DIR/end.RANK or DIR/end as
soon as one of them exists. WHAT is `save`: it ends with status 75 on a signal that asks
for a stop; `deaf`: it ignores SIGTERM.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType


def say(line: str) -> None:
    """Write a line at once, so that it does not mix with another worker's."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def save(number: int, _: FrameType | None) -> None:
    say(f"saved on {signal.Signals(number).name}")
    sys.exit(75)


directory, what = Path(sys.argv[1]), sys.argv[2:]
rank = os.environ["RANK"]
for number in (signal.SIGUSR1, signal.SIGTERM):
    if what == ["save"]:
        signal.signal(number, save)
    elif what == ["deaf"]:
        signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
say(f"worker {rank} listens")
for name, text in (
    (f"{rank}.pids", f"{os.getpid()} {child.pid}"),
    (f"{rank}.{os.environ['DISTOPT_INCARNATION']}", json.dumps(dict(os.environ))),
):
    # Whoever waits for a file finds it whole.
    (directory / f"new.{rank}").write_text(text)
    (directory / f"new.{rank}").rename(directory / name)
while True:
    for end in (directory / f"end.{rank}", directory / "end"):
        if end.exists():
            status = int(end.read_text() or 0)
            end.unlink() if end.suffix else None
            sys.exit(status)
    time.sleep(0.02)
