"""Train a model of any ESPnet task, optionally by one of the algorithms (`--distopt`).

    distopt launch --nproc 2 -m espnet_distopt.bin.espnet_train st --distopt adpsgd ...

The first word is the task, by the name of ESPnet's command: `st` is speech translation,
as `espnet2.bin.st_train` trains it. All that follows are the options of that command.
Tasks with a trainer of their own (speakers, languages, GANs) are refused.
"""

import argparse
import sys
from collections.abc import Sequence

from espnet_distopt.errors import one_line_errors
from espnet_distopt.espnet.training.command import train
from espnet_distopt.espnet.training.options import names_of_tasks


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the first word."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", help=f"one of: {', '.join(names_of_tasks())}")
    parser.add_argument("options", nargs="...", help="`TASK --help` lists them")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train a model."""
    words = list(sys.argv[1:] if cmd is None else cmd)
    args = get_parser().parse_args(words[:1])
    train("espnet_distopt.espnet.training.tasks:task", words[1:], args.task)


if __name__ == "__main__":
    main()
