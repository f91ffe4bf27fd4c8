"""Reads what modules import, from their source: nothing of them is run.

Counted are imports at the top, inside functions and under TYPE_CHECKING, relative ones,
the constant names that are given to `import_module`, and submodules that are reached
through their package (`torch.distributed.barrier()` after `import torch`).
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Sources = Mapping[str, str]
"""Path of a module, from the repository's root -> its source."""


@dataclass(frozen=True)
class Import:
    """One import: the module's path, the line, and the dotted name that it imports."""

    path: str
    line: int
    name: str

    def reaches(self, module: str) -> bool:
        """Return whether the import is of `module` or of something inside it."""
        return self.name == module or self.name.startswith(module + ".")

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.name}"


def read_sources(root: Path, *folders: str) -> dict[str, str]:
    """Return the modules in `folders` of `root`."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    }


@functools.cache
def module_name(path: str) -> str:
    """Return the dotted name of the module at `path`.

    >>> module_name("espnet_distopt/core/__init__.py")
    'espnet_distopt.core'
    """
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_imports(sources: Sources) -> list[Import]:
    """Return all imports; `from a import b` is of a.b where that is a module."""
    modules = {module_name(path) for path in sources}
    modules |= {_top(module) for module in modules}
    return [
        Import(path, line, _resolved(name, modules))
        for path, source in sources.items()
        for line, name in _imported(path, source)
    ]


def _resolved(name: str, modules: set[str]) -> str:
    """Return the module of this repository that holds `name`; `name` if none does."""
    if _top(name) not in modules:
        return name
    parts = name.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in modules), name)


@functools.cache
def _imported(path: str, source: str) -> list[tuple[int, str]]:
    """Return the line and the dotted name of each import; of `from a import b`, a.b."""
    tree = ast.parse(source, path)
    found = []
    for node in ast.walk(tree):
        found += [(node.lineno, name) for name in _names(node, path)]  # type: ignore[attr-defined]
    top = {n.asname or _top(n.name): n.name if n.asname else "" for n in _plain(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (chain := _chain(node)):
            first, _, rest = chain.partition(".")
            if first in top:
                found.append((node.lineno, f"{top[first] or first}.{rest}"))
    return found


def _names(node: ast.AST, path: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = PurePosixPath(path).parts[: -node.level] if node.level else ()
        base = ".".join([*package, *([node.module] if node.module else [])])
        yield from (f"{base}.{each.name}" for each in node.names)
    elif isinstance(node, ast.Call) and node.args:
        called = node.func
        name = getattr(called, "attr", getattr(called, "id", ""))
        given = node.args[0]
        if name in ("import_module", "__import__") and isinstance(given, ast.Constant):
            yield str(given.value)


def _plain(tree: ast.AST) -> Iterator[ast.alias]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from node.names


def _top(name: str) -> str:
    return name.partition(".")[0]


def _chain(node: ast.expr) -> str | None:
    """Return `a.b.c` of attributes of a name; None for those of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (inner := _chain(node.value)):
        return f"{inner}.{node.attr}"
    return None
