"""Copy a recipe out of the package, so that it can be run and changed."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.recipes import copy_recipe, recipe_names, recipes_root
from espnet_distopt.files.writing import explain_failed_write


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Copy a recipe to DIR/egs/NAME, and the scripts that recipes share "
        "to DIR/local. Without arguments, list the recipes.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the recipe")
    parser.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="where to")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Copy the recipe, and say how it is started."""
    args = get_parser().parse_args(cmd)
    root = recipes_root()
    names = recipe_names(root)
    if args.name is None:
        print("\n".join(names))
        return
    if args.name not in names:
        raise InputError(f"no recipe {args.name}: there are {', '.join(names)}")
    if args.dir is None:
        raise InputError(f"say where to: recipe {args.name} DIR")
    if (args.dir / "egs" / args.name).exists():
        raise InputError(f"{args.dir}/egs/{args.name} exists: choose another directory")
    with explain_failed_write(args.dir):
        _refuse_other_scripts(root, args.dir)
        made = copy_recipe(root, args.name, args.dir)
    for directory in made:
        print(f"cd {shlex.quote(str(directory))} && {_python()}./run.sh")


def _refuse_other_scripts(root: Path, target: Path) -> None:
    """Refuse a directory whose shared scripts are not those of this version."""
    for file in root.glob("local/*.sh"):
        there = target / "local" / file.name
        if there.exists() and there.read_bytes() != file.read_bytes():
            raise InputError(
                f"{there} is not what this version of the package would put there: "
                "choose another directory"
            )


def _python() -> str:
    """Return what tells a recipe which Python to use, if it would not find this one."""
    found = shutil.which("python3")
    if found and os.path.samefile(Path(found).parent, Path(sys.executable).parent):
        return ""
    return f"PYTHON={shlex.quote(sys.executable)} "


if __name__ == "__main__":
    main()
