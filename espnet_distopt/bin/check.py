"""Check the distopt options of a training before anything is prepared for it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.algorithms import check
from espnet_distopt.config import read_yaml
from espnet_distopt.errors import InputError, one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--config", type=Path, help="training configuration (YAML)")
    parser.add_argument(
        "--distopt_config", type=Path, help="YAML with distopt and distopt_conf"
    )
    parser.add_argument("--distopt", help="algorithm; overrides the files'")
    parser.add_argument("--nlearners", type=int, default=1, help="number of learners")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Check, and say nothing when all is well."""
    args = get_parser().parse_args(cmd)
    files = [path for path in (args.config, args.distopt_config) if path is not None]
    config = {key: value for path in files for key, value in read_yaml(path).items()}
    name = args.distopt or config.get("distopt")
    conf = config.get("distopt_conf") or {}
    if name in (None, "none"):
        return
    if not isinstance(conf, dict):
        raise InputError(f"distopt_conf must be `option: value` lines, not {conf!r}")
    check(str(name), conf, args.nlearners)


if __name__ == "__main__":
    main()
