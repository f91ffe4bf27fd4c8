"""docs/private_parts.md names all private parts of other packages that are used."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "espnet_distopt"
TABLE = ROOT / "docs" / "private_parts.md"

TREES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
PUBLIC = {"_asdict", "_replace", "_make", "_fields", "_exit"}
"""Names of the standard library that are public in spite of their underscore."""


def is_private(name: str) -> bool:
    return re.match(r"_[a-zA-Z]", name) is not None and name not in PUBLIC


def own_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module defines, or sets on its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield from [node.attr] if isinstance(node.ctx, ast.Store) else []


def used(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of other packages that a module uses.

    A class may also set the class of another one's object.
    """
    own = {*own_names(tree)} - OVERRIDDEN
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            inherited = ast.unparse(node.value) in ("self", "cls", "super()")
            foreign = node.attr in OVERRIDDEN or not (inherited or node.attr in own)
            if is_private(node.attr) and foreign:
                yield node.attr
            if node.attr == "__class__" and isinstance(node.ctx, ast.Store):
                yield node.attr
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if is_private(each.name))
        if isinstance(node, ast.ImportFrom):
            ours = (node.module or "").startswith(("espnet_distopt", "__future__"))
            names = [] if ours else [*(node.module or "").split(".")]
            names += [] if ours else [each.name for each in node.names]
            yield from filter(is_private, names)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getattr"):
            for name in node.args[1:2]:
                if isinstance(name, ast.Constant) and is_private(str(name.value)):
                    yield str(name.value)


OVERRIDDEN = {"_configure_launcher"}
"""Private methods of other packages' classes that subclasses here have, too."""


def listed() -> set[tuple[str, str]]:
    """Return the file and the name of each part that the table has."""
    found = set()
    for line in TABLE.read_text().splitlines():
        if line.startswith("| `"):
            parts, files = line.split("|")[1:3]
            for file in re.findall(r"\(\.\./espnet_distopt/([^)]+)\)", files):
                found |= {(file, name) for name in re.findall(r"`([^`]+)`", parts)}
    return found


def test_the_table_has_every_private_part_and_no_other() -> None:
    found = {(file, name) for file, tree in TREES.items() for name in used(tree)}
    in_table = listed()
    assert not found - in_table, f"not in {TABLE.name}: {sorted(found - in_table)}"
    for file, name in in_table:
        assert name.split(".")[-1] in (PACKAGE / file).read_text(), (file, name)
