"""What an experiment leaves: a table on the screen, files in benchmarks/results/."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

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
) -> Path:
    """Print the table and write it, and the data; return the path without suffix."""
    path = folder(quick, out) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/{name}.py" + " --quick" * quick
    machine = f"{platform.machine()}, torch {torch.__version__}, {threads}."
    if quick:
        caption += " A quick run, to try the command: these figures say nothing."
    text = "\n".join([*table, "", caption, machine, "", f"Command: `{command}`", ""])
    print(f"\n{text}")
    _replace(path.with_suffix(".md"), text)
    _replace(path.with_suffix(".json"), json.dumps(data, indent=1) + "\n")
    print(f"written: {path}.md", file=sys.stderr)
    return path


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
