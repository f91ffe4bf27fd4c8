"""Which kind a test is, found from where it is and from what it calls.

A test that starts learners as real processes, or a browser, calls one of `STARTERS`,
itself or by functions of tests/ and fixtures: the names in their code are followed.
"""

import functools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

KINDS = {
    "fast": "none of the others: computes in one process",
    "thorough": "takes long: schedules by the thousand, and further cases of sweeps",
    "processes": "starts learners, or a browser, as real processes",
    "slurm": "starts a Slurm of its own",
    "recipes": "runs scripts of local/, tools/ and egs/",
    "data": "needs a corpus of the user's",
    "users": "trains beside the packages of ESPnet's users, which `make thorough` gets",
}

FOLDERS = {"slurm": "slurm", "recipes": "recipes"}
"""Folder of tests/ -> the kind of all tests in it."""

STARTERS = {
    ("processes", "launch"),
    ("learners", "train"),
    ("learners", "launch"),
    ("learners", "fork"),
    ("context", "ForkServerContext"),
    ("fork_server", "context"),
    ("browser", "browser"),
}
"""The last part of a module, and a function of it that starts processes."""

TESTS = Path(__file__).parent
OURS = [TESTS, TESTS.parent / "espnet_distopt", TESTS.parent / "benchmarks"]
"""Folders whose code is followed; the environment may lie in the repository, too."""


def kind_of(item: pytest.Item) -> str:
    """Return the kind of a test; one that a test names itself comes first."""
    named = [kind for kind in KINDS if item.get_closest_marker(kind)]
    if named:
        return named[0]
    folder = item.path.relative_to(TESTS).parts[0]
    if folder in FOLDERS:
        return FOLDERS[folder]
    return "processes" if any(map(_starts, _functions(item))) else "fast"


def _functions(item: pytest.Item) -> Iterator[Callable[..., Any]]:
    """Yield the test's function and those of its fixtures."""
    if isinstance(item, pytest.Function):
        yield item.function
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            yield from (each.func for each in definitions)


@functools.cache
def _starts(function: Callable[..., Any]) -> bool:
    """Return whether a function reaches one of `STARTERS`."""
    seen: set[Any] = set()
    left: list[Any] = [function]
    while left:
        each = left.pop()
        # Any other object may compute or load what it is asked for.
        if not isinstance(each, types.FunctionType | type) or each in seen:
            continue
        seen.add(each)
        each = getattr(each, "__wrapped__", each)
        inner = getattr(each, "hypothesis", None)
        if inner is not None:
            left.append(inner.inner_test)
        if (each.__module__.rpartition(".")[2], each.__name__) in STARTERS:
            return True
        left += _reached(each)
    return False


def _reached(each: Any) -> list[Any]:
    """Return what the code of a function or class of tests/ names."""
    if isinstance(each, type):
        own = (each.__module__ or "").split(".")[0] not in {"builtins", "torch"}
        return [v for v in vars(each).values() if callable(v)] if own else []
    if not any(map(Path(each.__code__.co_filename).is_relative_to, OURS)):
        return []
    names = set(_names(each.__code__))
    found = [value for name, value in each.__globals__.items() if name in names]
    modules = [value for value in found if isinstance(value, types.ModuleType)]
    return found + [getattr(m, name, None) for m in modules for name in names]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
