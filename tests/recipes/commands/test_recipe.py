"""A copy of a recipe has all that it needs besides the package."""

from pathlib import Path

import pytest

from espnet_distopt.recipes.commands.recipe import (
    copy_recipe,
    recipe_names,
    recipes_root,
)
from tests.recipes.references import named_files


@pytest.mark.parametrize("name", recipe_names(recipes_root()))
def test_a_copy_has_the_files_that_it_names(name: str, tmp_path: Path) -> None:
    [recipe] = copy_recipe(recipes_root(), name, tmp_path)
    named = named_files(recipe)
    assert {"../../../local/asr.sh", "./run.sh"} <= named
    assert [each for each in named if not (recipe / each).exists()] == []
