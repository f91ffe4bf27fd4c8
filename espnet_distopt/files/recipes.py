"""The recipes' scripts and configurations: where they are, and copies of them.

In a checkout they are in its root, in an installed package in `recipes/` beside the
modules. Only the standard library is imported, because setup.py copies by this module.
"""

import shutil
from pathlib import Path

from espnet_distopt.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]
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

    Args:
        root: What `recipes_root` returns.
        name: One of `recipe_names`.
        target: The directory that gets egs/ and local/.

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
