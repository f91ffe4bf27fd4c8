"""Reads what code a benchmark runs, and which of it has changed since a commit.

What it runs is read from the source: the benchmark, the modules that it imports, and
those that it names in a string, as it does to start them in another process. Comments
and docstrings do not count as code.
"""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.import_reader import module_name, read_imports, read_sources

ROOT = Path(__file__).parents[2]
BENCHMARKS = "benchmarks"
SOURCES = read_sources(ROOT, "espnet_distopt", BENCHMARKS)
NOT_MEASURED = {
    f"{BENCHMARKS}/report.py",
    f"{BENCHMARKS}/convergence/arithmetic.py",
}
"""One writes the tables of all benchmarks, and one has the numbers by which results of
older arithmetic are left out. Neither measures anything."""

COMPILED = "compiled_passes.py"
"""The modules whose names core/compiled.py computes; each is beside those it serves."""


def own_code(script: str) -> set[str]:
    """Return the modules of benchmarks/ that the benchmark at path `script` runs."""
    return {path for path in measured(script) if path.startswith(BENCHMARKS)}


@functools.cache
def measured(script: str) -> frozenset[str]:
    """Return the paths of all modules that the benchmark at path `script` runs."""
    found: set[str] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path not in found and path not in NOT_MEASURED:
            found.add(path)
            waiting += _used(path)
            beside = (PurePosixPath(path).parent / COMPILED).as_posix()
            waiting += [beside] * (beside in SOURCES)
    return frozenset(found)


def changed_since(commit: str, paths: set[str] | frozenset[str]) -> list[str]:
    """Return those of the modules at `paths` whose code differs from a commit's."""
    git = ["git", "-C", str(ROOT)]
    differing = _output([*git, "diff", "--name-only", commit, "--", *sorted(paths)])
    found = []
    for path in differing.splitlines():
        before = _output([*git, "show", f"{commit}:{path}"], missing="")
        if _code(before) != _code(SOURCES[path]):
            found.append(path)
    return found


def _used(path: str) -> set[str]:
    """Return the modules that the one at `path` imports, or names in a string."""
    return {
        found
        for name in _imported()[path] | set(_named(path))
        if (found := _paths().get(name))
    }


@functools.cache
def _paths() -> dict[str, str]:
    """Return the path of each module, by every name under which it is imported."""
    names = {module_name(path): path for path in SOURCES}
    inside = {n.removeprefix(f"{BENCHMARKS}."): p for n, p in names.items()}
    return inside | names


@functools.cache
def _imported() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {path: set() for path in SOURCES}
    # A benchmark is a script, so it imports its neighbours by their bare names.
    bare = {path.removeprefix(f"{BENCHMARKS}/"): s for path, s in SOURCES.items()}
    path_of = dict(zip(bare, SOURCES, strict=True))
    for each in read_imports(bare):
        found[path_of[each.path]].add(each.name)
    return found


def _named(path: str) -> Iterator[str]:
    """Yield the modules that are named in strings; f"a.{x}" names all modules of a."""
    for node in ast.walk(ast.parse(SOURCES[path])):
        if isinstance(node, ast.Constant) and "." in str(node.value):
            yield str(node.value)
        elif isinstance(node, ast.JoinedStr):
            first = node.values[0]
            if isinstance(first, ast.Constant) and str(first.value).endswith("."):
                yield from (n for n in _paths() if n.startswith(str(first.value)))


@functools.cache
def _code(source: str) -> str:
    """Return the code of a module, without what is only said about it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_string(s)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_string(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Expr) and isinstance(
        getattr(value, "value", None), str
    )


def _output(command: list[str], missing: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and missing is not None:
        return missing
    assert not done.returncode, done.stderr
    return done.stdout
