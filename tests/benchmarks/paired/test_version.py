"""The arithmetic's digest follows the code, and not its prose."""

from dataclasses import replace
from pathlib import Path

import pytest
from paired.cell import Cell
from paired.plan import plan
from paired.recipe import RECIPES
from paired.version import arithmetic, settings, version

from espnet_distopt.errors import InputError


def digest(folder: Path, code: str) -> str:
    (folder / "consistent.py").write_text(code)
    return arithmetic(folder)


def test_comments_and_docstrings_change_nothing(tmp_path: Path) -> None:
    before = digest(
        tmp_path, '"""Old."""\ndef f(x):\n    """Old."""\n    return x / 2\n'
    )
    after = digest(tmp_path, '"""New."""\ndef f(x):\n    return x / 2  # Halve.\n')
    assert before == after
    assert digest(tmp_path, "def f(x):\n    return x / 3\n") != before


def test_a_further_module_of_the_estimator_counts(tmp_path: Path) -> None:
    before = digest(tmp_path, "a = 1\n")
    (tmp_path / "consistent_noise.py").write_text("b = 1\n")
    assert arithmetic(tmp_path) != before


def test_a_missing_estimator_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no consistent"):
        arithmetic(tmp_path)


def test_only_consistent_cells_depend_on_the_arithmetic() -> None:
    for cell in plan():
        has = "second_moment=consistent" in cell.method
        assert ("arithmetic" in version(cell)) == has


def test_settings_follow_the_options_of_recipe_and_algorithm() -> None:
    recipe = RECIPES["fsdd"]
    longer = replace(recipe, train_args=recipe.train_args + " --max_epoch 9")
    cell = Cell(recipe="fsdd", learners=4, algorithm="local_sgd", seed=0)
    other = replace(cell, options=(("period", 4),))
    digests = {
        settings(recipe, cell),
        settings(longer, cell),
        settings(recipe, other),
    }
    assert len(digests) == 3
    # The recipe's own period is 8.
    assert settings(recipe, replace(cell, options=(("period", 8),))) in digests
