"""Train a hybrid system's acoustic model, optionally by an algorithm (`--distopt`).

It takes every option of `espnet2.bin.asr_train`. The data are named `speech` (features,
type `kaldi_ark`) and `states` (the pdf of each frame, from `gmm_train`, type
`kaldi_ark`); `--input_size` is the number of dimensions of the features, and
`--token_list` names the pdfs. For several learners it is started by
`espnet_distopt.bin.launch`, by torchrun, or by srun in a Slurm job, whose tasks are
then the learners:

    distopt launch --nproc 2 -m espnet_distopt.recipes.commands.hybrid_train ...
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
        from espnet_distopt.recipes.models.hybrid.task import DistoptHybridTask
    return DistoptHybridTask


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train an acoustic model."""
    environment.apply(cmd)
    check_early(cmd)
    _task().main(cmd=cmd)


if __name__ == "__main__":
    main()
