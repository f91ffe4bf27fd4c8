"""Train a language model as ESPnet's own `espnet2.bin.lm_train` does.

It takes the same options. As any training of this package it is the only one in its
directory, goes on after a kill, and stops when it is told to. It goes on only with a
training of the same model, tokens and text.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.distributed import slurm_step as environment
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.errors import one_line_errors
from espnet_distopt.espnet.models.quick_import import importing_espnet

with importing_espnet():
    from espnet_distopt.espnet.training.any_task import task
    from espnet_distopt.espnet.training.one_run import refuse_if_taken
    from espnet_distopt.espnet.training.same_training import (
        keep_to_one_model,
        keep_to_one_source,
        refuse_other_tokens,
    )


def get_parser() -> argparse.ArgumentParser:
    """Return ESPnet's parser with the distopt options."""
    parser: argparse.ArgumentParser = task("lm").get_parser()
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train a language model."""
    environment.apply(cmd)
    args = get_parser().parse_args(cmd)
    # ESPnet itself says what is required and missing.
    named = args.output_dir is not None and not args.collect_stats
    if named and not incarnation():
        elsewhere = "--expdir NAME"
        refuse_if_taken(Path(args.output_dir))
        refuse_other_tokens(args, elsewhere)
        keep_to_one_model(args, task("lm").class_choices_list, elsewhere)
        texts = [Path(path) for path, *_ in args.train_data_path_and_name_and_type]
        keep_to_one_source(args, texts, elsewhere)
    task("lm").main(args=args)


if __name__ == "__main__":
    main()
