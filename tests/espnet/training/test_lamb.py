"""`optim: lamb` in an ESPnet configuration."""

from argparse import Namespace
from pathlib import Path

import torch
from espnet2.tasks.abs_task import optim_classes

from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.optimizers.lamb import Lamb
from tests.espnet.toy import arguments
from tests.fork_server import PRELOAD
from tests.processes import launch

PRELOAD.append("espnet_distopt.espnet.training.tasks")


def test_a_recipe_can_ask_for_lamb(tmp_path: Path) -> None:
    conf = ["--optim", "lamb", "--optim_conf", "lr=0.02"]
    conf += ["--optim_conf", "weight_decay=0.01", "--optim_conf", "betas=[0.8,0.99]"]
    cmd = arguments(tmp_path, tmp_path / "exp", *conf)
    args = DistoptASRTask.get_parser().parse_args(cmd)
    model = torch.nn.Linear(3, 2)
    (optimizer,) = DistoptASRTask.build_optimizers(args, model)
    assert type(optimizer) is Lamb
    assert launch(1, without_parser, args) == [(False, Lamb)]
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.02, 0.01)
    assert list(group["betas"]) == [0.8, 0.99]
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def without_parser(args: Namespace) -> tuple[bool, type]:
    """Build the optimizer as a child process of ESPnet does, which only imports."""
    known = "lamb" in optim_classes
    (optimizer,) = DistoptASRTask.build_optimizers(args, torch.nn.Linear(3, 2))
    return known, type(optimizer)
