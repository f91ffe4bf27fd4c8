"""Algorithms of other packages, which are found by their entry points."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from espnet_distopt.algorithms import (
    ALGORITHMS,
    Registration,
    build,
    check,
    lookup,
    names,
)
from espnet_distopt.algorithms.gossip.adpsgd import Adpsgd, AdpsgdConfig
from espnet_distopt.algorithms.plugins import load_plugins
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from tests.algorithms.packages import install

GOOD = """\
from espnet_distopt.algorithms import Registration
from espnet_distopt.algorithms.synchronous.allreduce import AllReduce, AllReduceConfig

class Mine(AllReduce):
    pass

pair = Registration(Mine, AllReduceConfig)
not_a_pair = (Mine, AllReduceConfig)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for packages, first on sys.path."""
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    yield tmp_path
    load_plugins.cache_clear()


def test_an_algorithm_of_another_package_is_found_by_name(site: Path) -> None:
    install(site, "plugin_good", GOOD, mine="plugin_good:pair")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check("mine", {}, 2)
    built = build("mine", {}, Learner(model, optimizer))
    assert type(built).__name__ == "Mine"
    assert type(built) is lookup("mine").algorithm
    assert names() == [*ALGORITHMS, "mine"]
    with pytest.raises(InputError, match=r"options of mine: unknown option 'x'"):
        check("mine", {"x": 1}, 2)
    with pytest.raises(InputError, match=r"unknown algorithm 'me'; .*local_sgd, mine"):
        lookup("me")


BROKEN = {
    "raise ValueError('no\\n  such card')": r"ValueError: no such card",
    "import nowhere_at_all": r"ModuleNotFoundError: No module named 'nowhere_at_all'",
    "pair = ": r"SyntaxError: ",
    "": r"AttributeError: module 'plugin_\d' has no attribute 'pair'",
    GOOD.replace("not_a_pair", "pair"): r"TypeError: plugin_\d:pair is a tuple, no ",
    GOOD.replace("(Mine, A", "(pair, A").replace("pair =", "pair = 3; pair =", 1): (
        r"InputError: 3 is not a subclass of Algorithm"
    ),
    GOOD.replace("pair =", "Mine.finish = lambda *_: None; pair =", 1): (
        r"InputError: Mine\.finish is no generator: a program yields what it sends"
    ),
    GOOD.replace("(Mine, AllReduceConfig)", "(Mine, dict)"): (
        r"InputError: <class 'dict'>, the options, is not a dataclass"
    ),
}


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_package_that_does_not_load_is_logged_and_not_fatal(
    site: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    code, reason = list(BROKEN.items())[number]
    name = f"plugin_{number}"
    install(site, name, code, broken=f"{name}:pair")
    with caplog.at_level(logging.WARNING):
        check("adpsgd", {}, 2)
    (said,) = caplog.messages
    what = rf"algorithm 'broken' of package {name} \({name}:pair\) does not load: "
    assert re.match(what + reason, said)
    with pytest.raises(InputError, match=what + reason) as asked:
        check("broken", {}, 2)
    assert "\n" not in str(asked.value)
    assert "broken" not in names()
    assert len(caplog.messages) == 1


def test_a_name_that_is_taken_is_refused(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "plugin_a", GOOD, adpsgd="plugin_a:pair", mine="plugin_a:pair")
    install(site, "plugin_b", GOOD, mine="plugin_b:pair")
    with caplog.at_level(logging.WARNING):
        assert lookup("adpsgd") == Registration(Adpsgd, AdpsgdConfig)
    assert caplog.messages == [
        "algorithm 'adpsgd' of package plugin_a (plugin_a:pair) is refused: the name "
        "is taken",
        "algorithm 'mine' of package plugin_b (plugin_b:pair) is refused: the name is "
        "taken",
    ]
    assert getattr(lookup("mine").algorithm, "__module__", None) == "plugin_a"


def test_a_package_may_be_imported_before_the_registry(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "plugin_first", GOOD, mine="plugin_first:pair")
    import plugin_first  # type: ignore[import-not-found]

    assert lookup("mine") is plugin_first.pair
    assert not caplog.messages
