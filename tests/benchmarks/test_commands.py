"""The commands find what they import, whatever folder they are called from."""

import os
import subprocess
import sys
from pathlib import Path

COMMANDS = Path(__file__).parents[2] / "benchmarks"


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
