"""Train another task of ESPnet by the algorithms; here it is speech translation.

    distopt launch --nproc 2 examples/espnet_task.py --distopt adpsgd --ngpu 0 ...

All other options are those of the task (of `espnet2.bin.st_train`), and its checkpoints
decode in stock ESPnet. For yet another task, change the names. `distopt_task` takes
every task that trains by ESPnet's common `Trainer`, and refuses the others.
"""

from collections.abc import Sequence

from espnet_distopt.errors import one_line_errors
from espnet_distopt.espnet.models.quick_import import importing_espnet

with importing_espnet():  # It takes seconds less, and tries no network.
    from espnet2.tasks.st import STTask

    from espnet_distopt.espnet.training.tasks import distopt_task

DistoptSTTask = distopt_task(STTask, "DistoptSTTask", __name__)


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train a model."""
    DistoptSTTask.main(cmd=cmd)


if __name__ == "__main__":
    main()
