"""The package has one module for each claim, which is named as the claim is.

A module has a `CLAIM`, and its docstring says what the claim is and who makes it. A new
module is found by itself.
"""

import importlib
import pkgutil

from convergence.claim import Claim


def load() -> dict[str, Claim]:
    """Return name -> claim, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {n: importlib.import_module(f"{__name__}.{n}").CLAIM for n in names}
