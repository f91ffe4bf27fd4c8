"""Tells the launcher that the others survive, and becomes another program.

usage: survivor.py PROGRAM ARGUMENTS...
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

if os.environ["RANK"] == "0" and os.environ["DISTOPT_INCARNATION"] == "0":
    import time

    import torch.distributed as dist

    from espnet_distopt.distributed.launcher import announce_survival

    # A group of one over the store of all.
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*where, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    announce_survival()
    dist.destroy_process_group()
    time.sleep(2)  # The launchers look twice a second.
    Path("survives").touch()
Path(f"{os.environ['RANK']}.node").write_text(os.environ["SLURMD_NODENAME"])
os.execv(sys.argv[1], sys.argv[1:])
