"""Train an ESPnet ASR model, optionally by one of the algorithms (`--distopt`).

It takes every option of `espnet2.bin.asr_train`. For several learners it is started by
`espnet_distopt.bin.launch`, by torchrun, or by srun in a Slurm job, whose tasks are
then the learners:

    python -m espnet_distopt.bin.launch --nproc 2 -m espnet_distopt.bin.asr_train ...
"""

import argparse
from collections.abc import Sequence
from typing import Any

from espnet_distopt.distributed import slurm_step as environment
from espnet_distopt.errors import one_line_errors
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.espnet.training.options import check_early


def get_parser() -> argparse.ArgumentParser:
    """Return ESPnet's parser with the distopt options."""
    parser: argparse.ArgumentParser = _task().get_parser()
    return parser


def _task() -> Any:
    with importing_espnet():
        from espnet_distopt.espnet.training.tasks import DistoptASRTask
    return DistoptASRTask


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train a model."""
    environment.apply(cmd)
    check_early(cmd)
    _task().main(cmd=cmd)


if __name__ == "__main__":
    main()
