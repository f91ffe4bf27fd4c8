"""The module writes the report of a benchmark: a table with its caption, and the data.

The caption of every report ends with what a reader needs to judge and to repeat the
figures: the seeds, the number of repeats, the machine, the commit and the command.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path
from statistics import median
from typing import Any

import torch

from espnet_distopt.files.writing import write_json, write_text

ROOT = Path(__file__).parent.parent

_LOCAL = ("--out", "--fsdd")
"""Options that name a folder of this machine; the reported command leaves them out."""


def folder(quick: bool, out: Path | None) -> Path:
    """Return the folder of a report.

    Args:
        quick: whether the run only tries the command; its figures are no results, so
            they do not go into `benchmarks/results`.
        out: the folder that the user has given, or None.
    """
    return out or ROOT / ("build/benchmarks/quick" if quick else "benchmarks/results")


def write_report(
    name: str,
    quick: bool,
    out: Path | None,
    table: Sequence[str],
    caption: str,
    data: Any,
    *,
    seeds: Sequence[int | str],
    repeats: int,
    threads: str = "one thread per process",
    variant: str = "",
    environment: str = "",
    arguments: Sequence[str] | None = None,
) -> Path:
    """Print a report, write it with its data, and return the path without suffix.

    Args:
        name: the name of the command, without `.py`.
        quick: whether the run only tries the command.
        out: the folder that the user has given, or None.
        table: the lines of the table.
        caption: the text below the table, as whole sentences.
        data: all figures, for the JSON file.
        seeds: the seeds of all random numbers, or phrases that say what they are; none
            if there are no random numbers.
        repeats: the largest number of times that a figure is measured, with each seed.
        threads: how many threads compute.
        variant: what the names of the files add to `name`, if one command has several
            results.
        environment: the variables that the command needs, as `NAME=value`.
        arguments: the command's arguments; None takes those of this process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    command = command_line(name, given, environment)
    path = folder(quick, out) / "_".join(filter(None, [name, variant]))
    path.parent.mkdir(parents=True, exist_ok=True)
    where = machine()
    about = (
        f"Machine: {where['processor']}, {where['cores']} cores, {threads}, torch "
        f"{where['torch']}. Commit: {where['commit']}."
    )
    if quick:
        caption += " This quick run only tries the command: its figures say nothing."
    how = _seeds_and_repeats(seeds, repeats)
    lines = [*table, "", caption, how, about, "", f"Command: `{command}`", ""]
    text = "\n".join(lines)
    print(f"\n{text}")
    write_text(path.with_suffix(".md"), text)
    record = {
        "machine": where,
        "command": command,
        "seeds": list(seeds),
        "repeats": repeats,
        "results": data,
    }
    write_json(path.with_suffix(".json"), record)
    print(f"written: {path}.md", file=sys.stderr)
    return path


def command_line(name: str, arguments: Sequence[str], environment: str = "") -> str:
    """Return the command that repeats a report.

    It has all arguments that were given, except those that name a folder of this
    machine, as `--out` does.
    """
    kept = []
    left = iter(arguments)
    for argument in left:
        option, _, value = argument.partition("=")
        if option not in _LOCAL:
            kept.append(argument)
        elif not value:
            next(left, None)
    command = shlex.join(["python", f"benchmarks/{name}.py", *kept])
    return f"{environment} {command}".strip()


def spread(values: Sequence[float], form: str) -> str:
    """Return the median and the range of some repeats, or the value of a single run.

    Args:
        values: the figure of each repeat.
        form: the format of a number, as `.2f`.
    """
    middle = format(median(values), form)
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):{form}} - {max(values):{form}})"


def how_often(repeats: int) -> str:
    """Return what a cell of `spread` shows, as a phrase for a heading or a caption."""
    if repeats == 1:
        return "one run"
    return f"the median (min - max) of {repeats} interleaved repeats"


def _seeds_and_repeats(seeds: Sequence[int | str], repeats: int) -> str:
    named = ", ".join(map(str, seeds)) or "none, as there are no random numbers"
    often = "one run" if repeats == 1 else str(repeats)
    return f"Seeds: {named}. Repeats: {often}{' with each seed' * (len(seeds) > 1)}."


def machine() -> dict[str, str | int | None]:
    """Return all but the code on which the figures depend."""
    return {
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "espnet_distopt": _own_version(),
    }


def _own_version() -> str:
    """Return the version of this repository, which need not be installed."""
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser["metadata"]["version"]


def _commit() -> str:
    """Return the measured commit, marked as dirty if code differs from it.

    Reports and pages do not count, because measuring changes them.
    """
    git = ["git", "-C", str(ROOT)]
    named = _output([*git, "describe", "--always", "--abbrev=10"])
    written = [":!benchmarks/results", ":!docs", ":!*.md"]
    changed = _output([*git, "status", "--porcelain", "--", str(ROOT), *written])
    return (named or "unknown") + "-dirty" * bool(changed)


def _output(command: Sequence[str]) -> str:
    """Return what a command prints, or "" if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    """Return the processor's model as Linux names it, or else its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
