"""What the README shows, runs; figures are those of their source; tables are whole."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from espnet_distopt.algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
CHOICE = ROOT / "docs" / "which_algorithm.md"


@pytest.mark.processes
def test_the_loop_in_the_readme_runs_with_two_learners(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code is not None
    script = tmp_path / "loop.py"
    script.write_text(code[1])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launch, "--nproc_per_node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    errors = [float(e) for e in re.findall(r"error ([\d.]+)", done.stdout)]
    assert len(errors) == 6
    assert max(errors[-2:]) < 0.2


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_the_option_table_is_the_truth() -> None:
    lines = (ROOT / "docs" / "espnet.md").read_text().splitlines()
    options = [re.match(r"\| `(\w+)` \| ([\w, ]+) \|", line) for line in lines]
    known = {(o[1], name) for o in options if o for name in o[2].split(", ")}
    for name, entry in ALGORITHMS.items():
        for field in dataclasses.fields(entry.config):
            assert (field.name, name) in known
            known.remove((field.name, name))
    assert not {(o, name) for o, name in known if name in ALGORITHMS}


def test_the_option_table_names_every_choice() -> None:
    text = (ROOT / "docs" / "espnet.md").read_text()
    for name, entry in ALGORITHMS.items():
        for option, kind in get_type_hints(entry.config).items():
            rows = re.findall(rf"^\| `{option}` \|.*$", text, re.MULTILINE)
            row = "".join(each for each in rows if name in each or "| all |" in each)
            choices = [c for part in (kind, *get_args(kind)) for c in get_args(part)]
            for choice in filter(lambda each: isinstance(each, str), choices):
                assert re.search(rf"\b{choice}\b", row), f"{name}: {option}: {choice}"


def test_the_table_of_algorithms_is_whole() -> None:
    table = CHOICE.read_text().partition("## All algorithms")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(ALGORITHMS)


def quoted(page: Path) -> list[tuple[str, Path]]:
    """Return the figures of a page that are links, each with the page it links to."""
    links = re.findall(r"\[([^\]]*)\]\(([\w/.]+\.md)#[\w-]+\)", page.read_text())
    return [(w, page.parent / t) for w, t in links if re.match(r"[-+\d]", w)]


def in_tables(page: Path) -> str:
    return "\n".join(line for line in page.read_text().splitlines() if "|" in line)


def test_linked_figures_are_those_of_their_source() -> None:
    figures = quoted(CHOICE)
    assert len(figures) > 10
    for figure, source in figures:
        cell = rf"(?<![\d.]){re.escape(figure)}(?![\d.]\d)"
        assert re.search(cell, in_tables(source)), (
            f"docs/which_algorithm.md: {figure} is not in the tables of {source.name}"
        )


def test_the_figures_of_the_readme_are_those_of_their_source() -> None:
    rows = re.findall(
        r"^\| .*\]\((docs/\w+\.md)#.*?\) \|(.*)\|$", README.read_text(), re.MULTILINE
    )
    assert len(rows) == 5
    for source, cells in rows:
        for figure in re.findall(r"(?<![\d.])\d+\.\d+", cells):
            table = in_tables(ROOT / source)
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", table), figure
