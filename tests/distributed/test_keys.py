"""Every key of the store is in `keys`: no other file writes one by hand."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import espnet_distopt

PACKAGE = Path(espnet_distopt.__file__).parent
OPERATIONS = {
    *("set", "get", "check", "add", "append", "compare_set", "delete_key"),
    *("multi_get", "wait"),
}
STORES = ("store", "root", "asked")
"""What a store is called."""

BESIDE = ("queue", "share", "work_queue", "open_queues", "protocols")
"""The beginnings of the files that have the keys of the work queue and the protocols
beside their code."""


def by_hand(source: str) -> list[str]:
    """Return the expressions of keys that a source writes to a store by hand."""
    tree = ast.parse(source)
    made = {**dict(assigned(tree)), **dict(returned(tree))}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asking = [call for call in calls if call.args and asks_store(call.func)]
    return [ast.unparse(call) for call in asking if literal(call.args[0], made)]


def asks_store(called: ast.expr) -> bool:
    """Return whether an operation of a store is called, or its prefix is given."""
    if isinstance(called, ast.Attribute):
        name = ast.unparse(called.value).rpartition(".")[2].removesuffix("()")
        asks = called.attr in OPERATIONS and name.lstrip("_") in STORES
        return asks or called.attr == "wait_for"
    return isinstance(called, ast.Name) and called.id == "PrefixStore"


def literal(key: ast.expr, made: dict[str, ast.expr]) -> bool:
    """Return whether a text in the source is part of a key."""
    if isinstance(key, ast.Call) and ast.unparse(key.func).startswith("keys."):
        return False
    if isinstance(key, ast.Constant):
        return isinstance(key.value, str)
    if isinstance(key, ast.JoinedStr):
        return True
    if isinstance(key, ast.Attribute):  # A constant of `keys`, or another's field.
        return False
    name = key.func if isinstance(key, ast.Call) else key
    if isinstance(name, ast.Name) and name.id in made:
        others = {each: made[each] for each in made if each != name.id}
        return literal(made[name.id], others)
    parts = [each for each in ast.iter_child_nodes(key) if isinstance(each, ast.expr)]
    return any(literal(part, made) for part in parts)


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from pairs(target, node.value)


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from pairs(one, its)


def returned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for each in ast.walk(node):
                if isinstance(each, ast.Return) and each.value is not None:
                    yield node.name, each.value


def test_no_other_file_writes_a_key_by_hand() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if not path.name.startswith(BESIDE):
            found[str(path.relative_to(PACKAGE))] = by_hand(path.read_text())
    assert not {name: written for name, written in found.items() if written}


@pytest.mark.parametrize(
    "source",
    [
        "store.set('stop', b'1')",
        "self._watch.store.check([f'epoch/{n}'])",
        "_BEGUN = 'begun'\nasked.compare_set(_BEGUN, '', '1')",
        "key, value = f'at/{rank}', 3\nstore.set(key, value)",
        "def _key(rank):\n    return f'at/{rank}'\nstore.get(_key(2))",
        "store.multi_get([*map(str, ranks), 'all'])",
        "PrefixStore(f'group/{n}', default)",
        "_store().set('distopt/' + name, '1')",
    ],
)
def test_a_key_by_hand_is_noticed(source: str) -> None:
    assert by_hand(source)


@pytest.mark.parametrize(
    "source",
    [
        "store.set(keys.STOP, b'1')",
        "store.set(keys.launch(f'look/{n}'), 'now')",
        "options.get('name')",
        "key = keys.pause(3)\nwatch.wait_for(key, 'the end of an epoch')",
    ],
)
def test_one_of_keys_is_none_by_hand(source: str) -> None:
    assert not by_hand(source)
