"""Train a language model with ESPnet's own `espnet2.bin.lm_train`.

It takes the same options, and starts in a third of the time without asking the network.
It goes on only with a training of the same model, tokens and text.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import one_line_errors
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.espnet.training.same_training import (
    keep_to_one_source,
    refuse_other_model,
    refuse_other_tokens,
)

with importing_espnet():
    from espnet2.tasks.lm import LMTask


def get_parser() -> argparse.ArgumentParser:
    """Return ESPnet's parser."""
    parser: argparse.ArgumentParser = LMTask.get_parser()
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train a language model."""
    args = get_parser().parse_args(cmd)
    # ESPnet itself says what is required and missing.
    if args.output_dir is not None and not args.collect_stats:
        elsewhere = "--expdir NAME"
        refuse_other_tokens(args, elsewhere)
        refuse_other_model(args, LMTask.class_choices_list, elsewhere)
        texts = [Path(path) for path, *_ in args.train_data_path_and_name_and_type]
        keep_to_one_source(args, texts, elsewhere)
    LMTask.main(args=args)


if __name__ == "__main__":
    main()
