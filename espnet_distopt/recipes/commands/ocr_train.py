"""Train a recognizer of text lines (OCR), optionally by an algorithm (`--distopt`).

It takes every option of `espnet2.bin.asr_train`, and `--line_augmentation`. The data
are named `speech` (type `kaldi_ark`, or `line_image_32` for images of height 32) and
`text`; `--input_size` is the height. For several learners it is started by
`espnet_distopt.bin.launch`, by torchrun, or by srun in a Slurm job, whose tasks are
then the learners:

    distopt launch --nproc 2 -m espnet_distopt.recipes.commands.ocr_train ...
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
        from espnet_distopt.recipes.models.ocr.task import DistoptOCRTask
    return DistoptOCRTask


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train a recognizer."""
    environment.apply(cmd)
    check_early(cmd)
    _task().main(cmd=cmd)


if __name__ == "__main__":
    main()
