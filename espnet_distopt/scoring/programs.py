"""Runs the programs of SCTK."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError


def run(
    command: Sequence[str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return its exit code and output.

    Raises:
        InputError: It cannot be started.
    """
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            # In any other locale Perl may complain that it is not installed.
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be run: {error.strerror}") from None


def sclite_version(command: Sequence[str]) -> str | None:
    """Return the version that sclite prints, or None if the command is not sclite.

    Raises:
        InputError: It cannot be started.
    """
    done = run(command)
    version = re.search(r"sclite Version: ([\d.]+)", done.stdout + done.stderr)
    return version.group(1) if version else None


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line that says why a program failed: its first error or last line."""
    said = (done.stdout + "\n" + done.stderr).strip().splitlines()
    errors = [line for line in said if line.lower().startswith("error")]
    return (errors or said[-1:] or ["it said nothing"])[0].strip()
