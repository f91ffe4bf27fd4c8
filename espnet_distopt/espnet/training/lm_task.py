"""ESPnet's language models, trained by `DistoptTrainer`."""

import argparse
from pathlib import Path

from espnet2.tasks.lm import LMTask

from espnet_distopt.espnet.training.tasks import distopt_task


def _texts(args: argparse.Namespace) -> list[Path]:
    return [Path(path) for path, *_ in args.train_data_path_and_name_and_type or ()]


DistoptLMTask = distopt_task(
    LMTask, "DistoptLMTask", __name__, sources=_texts, elsewhere="--expdir NAME"
)
