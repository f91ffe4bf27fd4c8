"""The examples in docstrings run."""

import doctest
import importlib

import pytest

MODULES = [
    "core.topology",
    "corpora.lines.augmentation",
    "corpora.lines.iam",
    "corpora.lines.sets",
    "corpora.mini_ocr.texts",
    "corpora.word_times",
    "distributed.slurm_step",
    "espnet.models.padded_rnn",
    "files.xml",
    "session",
    "work_queue",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"espnet_distopt.{name}")
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
