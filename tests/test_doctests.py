"""The examples in docstrings run."""

import doctest
import importlib

import pytest

MODULES = [
    "data.files.xml",
    "data.lines.augmentation",
    "data.lines.iam",
    "data.lines.sets",
    "data.mini_ocr.texts",
    "data.word_times",
    "models.padded_rnn",
    "session",
    "topology",
    "work_queue",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"espnet_distopt.{name}")
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
