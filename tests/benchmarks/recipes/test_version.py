"""What a result depends on: the settings, and the number of the arithmetic."""

from dataclasses import replace

import arithmetic
import pytest
from recipes.cell import Cell
from recipes.plan import plan
from recipes.recipe import RECIPES
from recipes.version import settings, version


def test_another_arithmetic_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {cell: version(cell) for cell in plan()}
    raised = {**arithmetic.VERSIONS, "second_moment consistent": 99}
    monkeypatch.setattr(arithmetic, "VERSIONS", raised)
    changed = {cell for cell in plan() if version(cell) != before[cell]}
    at_default = {"bmuf_adam"}  # The plan names the moment of all others.
    named = {c for c in plan() if "second_moment=consistent" in c.method}
    assert changed == named | {c for c in plan() if c.method in at_default}
    assert named


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
