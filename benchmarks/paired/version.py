"""What the result of a cell depends on, beside the cell itself, as short digests.

A result is used only if its digests are those of the present code, so that a change of
the settings or of the arithmetic makes the cells that it concerns anew, and no others.
"""

import ast
import hashlib
import json
from pathlib import Path

from report import ROOT

from espnet_distopt.errors import InputError
from espnet_distopt.files.yaml import read_yaml
from paired.cell import Cell
from paired.recipe import RECIPES, Recipe

ARITHMETIC = "espnet_distopt/optimizers"
ESTIMATOR = "consistent*"
"""The modules of `second_moment: consistent` are all that have such a name there."""


def version(cell: Cell) -> dict[str, str]:
    """Return the digests: `settings`, and `arithmetic` of a cell that has it.

    Raises:
        InputError: the modules of the arithmetic are not where this module looks.
    """
    found = {"settings": settings(RECIPES[cell.recipe], cell)}
    if ("second_moment", "consistent") in cell.options:
        found["arithmetic"] = arithmetic(ROOT / ARITHMETIC)
    return found


def settings(recipe: Recipe, cell: Cell) -> str:
    """Return the digest of the training's configuration and the algorithm's options.

    A default of the recipe counts only if the cell does not name that option itself.
    """
    conf = recipe.path / "conf"
    shared = conf / "distopt" / f"{cell.algorithm}.yaml"
    options = read_yaml(shared).get("distopt_conf") if shared.exists() else None
    merged = {**(options or {}), **dict(cell.options)}
    content = [recipe.train_args, read_yaml(conf / "train.yaml"), merged]
    return _digest(json.dumps(content, sort_keys=True))


def arithmetic(folder: Path) -> str:
    """Return the digest of the estimator's code without its comments and docstrings.

    Args:
        folder: the folder of the optimizers.

    Raises:
        InputError: no module there has the name of the estimator.
    """
    paths = sorted(folder.glob(f"{ESTIMATOR}.py")) + sorted(
        folder.glob(f"{ESTIMATOR}/**/*.py")
    )
    if not paths:
        raise InputError(f"{folder}: no {ESTIMATOR}: tell paired/version.py its name")
    return _digest("\n".join(_code(path) for path in paths))


def _code(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [x for x in body if not _is_text(x)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
