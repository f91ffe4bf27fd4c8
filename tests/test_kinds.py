"""Every test has one kind, which is found from what it calls."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.espnet.training import learners
from tests.kinds import KINDS, _starts
from tests.processes import launch


def directly() -> None:
    processes.launch(2, print)


def by_its_name() -> None:
    launch(2, print)


def through_another() -> None:
    for _ in range(2):
        directly()


def in_a_lambda() -> Callable[[], Any]:
    return lambda: learners.train([], 2, *[])  # type: ignore[call-arg]


class Cluster:
    def run(self) -> None:
        launch(2, print)


def by_a_class() -> None:
    Cluster().run()


def alone() -> None:
    partial(sum, [1])()


@pytest.mark.parametrize(
    "function", [directly, by_its_name, through_another, in_a_lambda, by_a_class]
)
def test_what_starts_learners(function: Callable[..., Any]) -> None:
    assert _starts(function)


def test_what_starts_none() -> None:
    assert not _starts(alone)


def test_a_test_has_one_kind(request: pytest.FixtureRequest) -> None:
    kinds = [kind for kind in KINDS if request.node.get_closest_marker(kind)]
    assert len(kinds) == 1


def test_the_tests_of_a_file_run_on_one_worker() -> None:
    """Otherwise both workers would set up the fixtures of a module."""
    words = "-m pytest -n 2 --dist loadfile -v -p no:cacheprovider "
    words += "-k test_what_starts_learners"
    done = subprocess.run(
        [sys.executable, *words.split(), __file__],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    workers = re.findall(r"^\[(gw\d)\] .* PASSED", done.stdout, re.MULTILINE)
    assert len(workers) == 5
    assert len(set(workers)) == 1, done.stdout
