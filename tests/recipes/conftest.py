"""The fixture is a recipe on toy data, whose `python` only records its calls."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recipes.toy_recipe import ROOT, Recipe
from tests.refusal import Refused, error_of


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return what gives the one line by which a command refuses its input.

    It gets the command, or a function that runs it, and the arguments.
    """

    def line(call: Callable[..., object], *arguments: object) -> str:
        return error_of(lambda _: call(*arguments), [], capsys)

    return line


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Return a recipe three levels below a copy of local/; a set has two utterances."""
    directory = tmp_path / "egs" / "toy" / "asr1"
    (directory / "local").mkdir(parents=True)
    (directory / "conf").mkdir()
    (tmp_path / "local").symlink_to(ROOT / "local")
    for name in ("path.sh", "cmd.sh"):
        shutil.copy(ROOT / "egs" / "fsdd" / "asr1" / name, directory)
    for name in ("train.yaml", "decode.yaml"):
        (directory / "conf" / name).write_text("seed: 0\n")
    (directory / "conf" / "decode_lm.yaml").write_text("lm_weight: 0.3\n")
    (directory / "local" / "data.sh").write_text(
        "#!/usr/bin/env bash\nset -euo pipefail\n"
        "for name in train dev test; do\n"
        "    mkdir -p data/$name\n"
        "    printf 'a-1 one two\\nb-2 three\\n' >data/$name/text\n"
        "    printf 'a-1 a\\nb-2 b\\n' >data/$name/utt2spk\n"
        "    printf 'a-1 x.ark:4\\nb-2 x.ark:9\\n' >data/$name/wav.scp\n"
        "done\n"
    )
    (directory / "local" / "data.sh").chmod(0o755)
    stub = tmp_path / "python"
    stub_source = Path(__file__).with_name("stub_python.py")
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} {stub_source} "$@"\n')
    stub.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHON": str(stub),
        "PYTHONPATH": str(ROOT),
        "STUB_CALLS": str(tmp_path / "calls"),
    }
    return Recipe(directory, environment)
