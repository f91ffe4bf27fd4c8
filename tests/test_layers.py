"""An import of the package only points down; each rule is broken, and noticed."""

import pytest

from tests.import_reader import Sources
from tests.layers import (
    FLOORS,
    PACKAGE,
    ROOMS_AT_MOST,
    SOURCES,
    breaches,
    circle,
    family,
    rooms,
)

TODAY = breaches(SOURCES)


def test_every_import_keeps_the_rules() -> None:
    assert not list(TODAY.values())


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert not circle(SOURCES)


def test_the_rooms_are_few() -> None:
    assert len(rooms(SOURCES)) <= ROOMS_AT_MOST, sorted(rooms(SOURCES))


def test_every_room_has_a_floor() -> None:
    assert not without_floor(rooms(SOURCES))


def without_floor(found: set[str]) -> set[str]:
    modules = [room.removesuffix(".py").replace("/", ".") for room in found]
    families = {family(f"{PACKAGE}.{module}") for module in modules}
    return families - set().union(*FLOORS)


# What the rules must notice: a module, a line that is added to it, and the rules.

IN_A_FUNCTION = "def f():\n    {}\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"

BASE = "import espnet_distopt.algorithms.base"

MUTATIONS = [
    ("core/topology.py", BASE, "floors"),
    ("errors.py", "from espnet_distopt.core import effects", "floors"),
    ("errors.py", IN_A_FUNCTION.format("import espnet_distopt.files.text"), "floors"),
    ("core/layout.py", FOR_TYPES.format("from espnet_distopt import x"), "floors"),
    ("core/layout.py", "from ..distributed import groups", "floors"),
    ("monitoring/table.py", "import_module('espnet_distopt.bin.status')", "floors"),
    ("session/session.py", "from espnet_distopt.work_queue import WorkQueue", "floors"),
    ("algorithms/base.py", "from espnet_distopt.distributed import groups", "floors"),
    ("cluster/job.py", "from espnet_distopt.monitoring import lines", "floors"),
    ("core/topology.py", "import time", "arithmetic"),
    ("core/layout.py", "import torch\nx = torch.distributed.barrier", "arithmetic"),
    ("algorithms/block/options.py", "from threading import Lock", "arithmetic"),
    ("optimizers/lamb.py", IN_A_FUNCTION.format("import socket"), "arithmetic"),
    ("algorithms/base.py", "from torch import distributed as dist", "arithmetic"),
    ("core/effects.py", "import espnet2.tasks.asr", "arithmetic espnet"),
    ("monitoring/lines.py", "from espnet2.train import reporter", "espnet"),
    ("bin/launch.py", "import lightning.pytorch", "lightning"),
    ("distributed/groups.py", "import espnet_distopt.algorithms", "floors drivers"),
    ("simulation/gossip.py", "import espnet_distopt.algorithms.block.bmuf", "drivers"),
    ("simulation/virtual_learner.py", BASE, "drivers"),
    ("recipes/corpora/fsdd.py", "from espnet_distopt.core import effects", "training"),
    ("recipes/scoring/scorers.py", "import espnet_distopt.simulation", "training"),
    ("files/text.py", "from espnet_distopt import core", "floors training"),
    ("recipes/corpora/fsdd.py", "import espnet_distopt.recipes.scoring.trn", "floors"),
    ("bin/launch.py", "import espnet_distopt.recipes.corpora.fsdd", "floors"),
    ("espnet/training/tasks.py", "from espnet_distopt import recipes", "floors"),
    ("lightning/fit.py", "import espnet_distopt.recipes.models.trained", "floors"),
    ("simulation/wire.py", "from espnet_distopt.recipes import hmm", "floors"),
    ("cluster/job.py", "from tests.processes import launch", "no_tests"),
    ("../benchmarks/report.py", "from processes import launch", "no_tests"),
]


@pytest.mark.parametrize(("path", "line", "rules"), MUTATIONS)
def test_a_breach_is_noticed(path: str, line: str, rules: str) -> None:
    sources = with_line(path, line)
    new = breaches(sources).keys() - TODAY.keys()
    assert {rule for rule, _, _ in new} == set(rules.split())


ALLOWED = [
    ("simulation/study/trial.py", "import espnet_distopt.algorithms.block.bmuf"),
    ("bin/status.py", "import espnet2.tasks.asr"),
    ("algorithms/gossip/adpsgd.py", "import espnet_distopt.algorithms.adasum"),
    ("distributed/groups.py", "import time, threading"),
    ("recipes/models/ocr/task.py", "from espnet_distopt import WorkQueue"),
]


@pytest.mark.parametrize(("path", "line"), ALLOWED)
def test_what_is_no_breach(path: str, line: str) -> None:
    assert breaches(with_line(path, line)).keys() == TODAY.keys()


SWBD = "import espnet_distopt.recipes.corpora.ldc.swbd"
CIRCLES = [
    ("recipes/corpora/kaldi/tokens.py", SWBD),
    ("simulation/clock.py", "from espnet_distopt.simulation.study import problem"),
    ("algorithms/block/options.py", "from espnet_distopt.algorithms import ALGORITHMS"),
    ("espnet/models/padded_rnn.py", "import espnet_distopt.espnet.training.trainer"),
    ("distributed/nccl.py", FOR_TYPES.format("from espnet_distopt import session")),
]


@pytest.mark.parametrize(("path", "line"), CIRCLES)
def test_a_circle_is_noticed(path: str, line: str) -> None:
    assert circle(with_line(path, line))


def test_too_many_rooms_are_noticed() -> None:
    more = [f"{PACKAGE}/espnet/new_{n}/x.py" for n in range(ROOMS_AT_MOST)]
    assert len(rooms([*SOURCES, *more])) > ROOMS_AT_MOST
    corpora = f"{PACKAGE}/recipes/corpora"
    same_room = [f"{corpora}/new_{n}/x.py" for n in range(ROOMS_AT_MOST)]
    assert rooms([*SOURCES, *same_room]) == rooms(SOURCES)


@pytest.mark.parametrize("path", ["tools/x.py", "new.py", "tools/deeper/x.py"])
def test_a_room_without_a_floor_is_noticed(path: str) -> None:
    assert without_floor(rooms([*SOURCES, f"{PACKAGE}/{path}"]))


def with_line(path: str, line: str) -> Sources:
    """Return the sources with a line behind those of one module."""
    full = "benchmarks/report.py" if path.startswith("../") else f"{PACKAGE}/{path}"
    sources = dict(SOURCES)
    sources[full] += f"\n{line}\n"
    return sources
