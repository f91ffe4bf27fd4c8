"""Each rank writes its variables, and the sum of all ranks by gloo, to DIR/RANK."""

import json
import os
import sys
from pathlib import Path

from espnet_distopt.distributed import slurm_step as environment

environment.apply()
total = None
if sys.argv[2] == "gloo":
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    ranks = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(ranks)
    total = ranks.item()
    dist.destroy_process_group()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_NODEID")
found = {name: int(os.environ[name]) for name in names}
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps({**found, "sum": total}))
