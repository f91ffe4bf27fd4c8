"""Two learners that survive; one is killed as soon as the launcher has been told.

usage: survives.py DIR

Learner 0 writes DIR/alone after it has been alone for two seconds.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from espnet_distopt.distributed.launcher import announce_survival

dist.init_process_group("gloo")
announce_survival()
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(2)
(Path(sys.argv[1]) / "alone").touch()
os._exit(0)  # Without the farewell of the process group, which is broken.
