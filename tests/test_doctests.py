"""The examples in docstrings run, wherever they are in the package."""

import doctest
import importlib
import pkgutil

import pytest

import espnet_distopt

AT_LEAST = 10
"""Modules with examples: fewer would mean that they are no longer found."""


def modules() -> list[str]:
    """Return the modules of the package whose source has an example."""
    found = []
    for each in pkgutil.walk_packages(espnet_distopt.__path__, "espnet_distopt."):
        spec = each.module_finder.find_spec(each.name, None)
        loader = spec.loader if spec is not None else None
        source = getattr(loader, "get_source", lambda _: "")(each.name)
        if ">>> " in source:
            found.append(each.name)
    return found


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_examples_are_found() -> None:
    assert len(modules()) >= AT_LEAST
