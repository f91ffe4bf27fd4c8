"""What the result of a cell depends on, beside the cell itself.

A result is used only if all that is the same with the present code, so that a change of
the settings or of the arithmetic makes the cells that it concerns anew, and no others.
"""

import hashlib
import json
from typing import Any

from arithmetic import versions

from espnet_distopt.files.yaml import read_yaml
from recipes.cell import Cell
from recipes.recipe import RECIPES, Recipe


def version(cell: Cell) -> dict[str, Any]:
    """Return the digest of the `settings`, and the numbers of the arithmetic.

    The numbers are those of `arithmetic`, which are above 1 where what the
    method computes has changed since the first results.
    """
    numbers = versions(cell.algorithm, cell.options)
    found: dict[str, Any] = {"settings": settings(RECIPES[cell.recipe], cell)}
    return found | ({"arithmetic": numbers} if numbers else {})


def settings(recipe: Recipe, cell: Cell) -> str:
    """Return the digest of the training's configuration and the algorithm's options.

    A default of the recipe counts only if the cell does not name that option itself.
    """
    conf = recipe.path / "conf"
    shared = conf / "distopt" / f"{cell.algorithm}.yaml"
    options = read_yaml(shared).get("distopt_conf") if shared.exists() else None
    merged = {**(options or {}), **dict(cell.options)}
    content = [recipe.train_args, read_yaml(recipe.path / recipe.train_config), merged]
    return _digest(json.dumps(content, sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
