"""A stand-in for a training: it keeps the contract of stopping, and learns nothing.

usage: trainer.py DIR STEPS [WHAT]

Each rank counts to STEPS, ten a second, goes on from DIR/state.RANK, and writes
DIR/done.RANK at the end. Told by SIGUSR1 or SIGTERM, it saves its count and ends with
status 75. WHAT is `stop`: it stops by itself after each step.
"""

import os
import signal
import sys
import time
from pathlib import Path

told: list[int] = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda signum, frame: told.append(signum))

directory, steps, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
state = directory / f"state.{rank}"
step = int(state.read_text()) if state.exists() else 0
restart = os.environ.get("SLURM_RESTART_COUNT", "0")
print(f"start {restart}: from step {step}", flush=True)
(directory / f"pid.{rank}").write_text(str(os.getpid()))
while step < steps:
    time.sleep(0.1)
    step += 1
    if told or what == ["stop"]:
        state.write_text(str(step))
        print(f"saved step {step}", flush=True)
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        sys.exit(75)
(directory / f"done.{rank}").write_text(restart)
