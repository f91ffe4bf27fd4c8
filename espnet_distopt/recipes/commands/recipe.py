"""Copy a recipe out of the package, so that it can be run and changed.

The recipes' scripts and configurations are in the root of a checkout; in an installed
package they are in `recipes/` among its modules.
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write

PACKAGE = Path(__file__).resolve().parents[2]
SHARED = "local/*.sh"
OWN = ("*.sh", "local/*.sh", "conf/**/*")
"""What a recipe consists of, as against what it makes: data/, dump/, exp/ ..."""


def recipes_root() -> Path:
    """Return the directory that holds egs/ and local/.

    Raises:
        InputError: The package was installed without its recipes.
    """
    for root in (PACKAGE / "recipes", PACKAGE.parent):
        if (root / "egs").is_dir() and (root / "local").is_dir():
            return root
    raise InputError(
        f"{PACKAGE} has no recipes: install the package from a wheel or a checkout"
    )


def recipe_names(root: Path) -> list[str]:
    """Return the recipes' names, as `fsdd`, in alphabetical order."""
    return sorted({path.parents[1].name for path in root.glob("egs/*/*/run.sh")})


def copy_recipe(root: Path, name: str, target: Path) -> list[Path]:
    """Copy a recipe, and the scripts that all recipes share, below `target`.

    The copy has the layout of the repository (egs/NAME/TASK and local), and plain files
    where that has links. Files that are there already are replaced.

    Returns:
        The directories of the copy that have a run.sh.
    """
    files = list(root.glob(SHARED))
    for pattern in OWN:
        files += root.glob(f"egs/{name}/*/{pattern}")
    # A link to a directory is no place that `**` looks into.
    files += root.glob(f"egs/{name}/*/conf/distopt/*.yaml")
    for file in filter(Path.is_file, files):
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return sorted(path.parent for path in target.glob(f"egs/{name}/*/run.sh"))


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Copy a recipe to DIR/egs/NAME, and the scripts that recipes share "
        "to DIR/local. Without arguments, list the recipes.",
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="the recipe")
    add("dir", nargs="?", type=Path, metavar="DIR", help="where to")
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
