"""Takes the recipes into the package that is built; all else is in setup.cfg."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from espnet_distopt.recipes.commands.recipe import copy_recipe, recipe_names  # noqa: E402


class BuildWithRecipes(build_py):
    """Builds the package with recipes/ in it, unless it stays in the checkout."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if not self.editable_mode:
            for name in recipe_names(ROOT):
                target = Path(self.build_lib, "espnet_distopt", "recipes")
                copy_recipe(ROOT, name, target)


setup(cmdclass={"build_py": BuildWithRecipes})
