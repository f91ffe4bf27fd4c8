"""What an experiment leaves: a table on the screen, files in benchmarks/results/."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from espnet_distopt.files.writing import write_json, write_text

ROOT = Path(__file__).parent.parent


def folder(quick: bool, out: Path | None) -> Path:
    """Return where results go: those of a quick run are no results."""
    return out or ROOT / ("build/benchmarks/quick" if quick else "benchmarks/results")


def write_report(
    name: str,
    quick: bool,
    out: Path | None,
    table: Sequence[str],
    caption: str,
    data: Any,
    threads: str = "one thread a process",
    options: Mapping[str, object] | None = None,
) -> Path:
    """Print the table and write it, and the data; return the path without suffix.

    With `options` of the command, their values belong to the name of the files.
    """
    options = options or {}
    path = folder(quick, out) / "_".join([name, *map(str, options.values())])
    path.parent.mkdir(parents=True, exist_ok=True)
    given = [f"--{option} {value}" for option, value in options.items()]
    quickly = ["--quick"] if quick else []
    command = " ".join([f"python benchmarks/{name}.py", *given, *quickly])
    where = machine()
    about = (
        f"{where['processor']}, {where['cores']} cores, torch {where['torch']}, "
        f"commit {where['commit']}"
    )
    if quick:
        caption += " A quick run, to try the command: these figures say nothing."
    machine_line = f"{about}, {threads}."
    lines = [*table, "", caption, machine_line, "", f"Command: `{command}`", ""]
    text = "\n".join(lines)
    print(f"\n{text}")
    write_text(path.with_suffix(".md"), text)
    record = {"machine": where, "command": command, "results": data}
    write_json(path.with_suffix(".json"), record)
    print(f"written: {path}.md", file=sys.stderr)
    return path


def machine() -> dict[str, str | int | None]:
    """Return what the figures depend on beside the code."""
    return {
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "espnet_distopt": metadata.version("espnet_distopt"),
    }


def _commit() -> str:
    """Return the commit that is measured, and whether files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    """Return its model as Linux names it, else its kind."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
