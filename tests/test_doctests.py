"""The examples in docstrings run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["session", "topology", "models.padded_rnn"])
def test_examples(name: str) -> None:
    module = importlib.import_module(f"espnet_distopt.{name}")
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
