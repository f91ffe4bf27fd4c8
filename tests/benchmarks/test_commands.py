"""The commands find what they import, from wherever they are called."""

import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.conftest import COMMANDS


def test_every_command_can_be_imported(tmp_path: Path) -> None:
    names = sorted(path.stem for path in COMMANDS.glob("*.py"))
    assert "links" in names
    code = (
        f"import sys; sys.path.insert(0, {str(COMMANDS)!r}); import {','.join(names)}"
    )
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
