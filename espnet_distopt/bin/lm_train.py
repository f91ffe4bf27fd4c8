"""Train a language model as ESPnet's own `espnet2.bin.lm_train` does.

It takes the same options. As any training of this package it is the only one in its
directory, goes on after a kill, and stops when it is told to. It goes on only with a
training of the same model, tokens and text.
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
        from espnet_distopt.espnet.training.tasks import DistoptLMTask
    return DistoptLMTask


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train a language model."""
    environment.apply(cmd)
    check_early(cmd)
    _task().main(cmd=cmd)


if __name__ == "__main__":
    main()
