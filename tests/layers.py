"""The rooms of the package, and which may import which.

A *family* is a folder or a module directly in espnet_distopt/ (algorithms, session), or
in espnet_distopt/recipes/ (recipes/hmm). A *room* is a folder that directly holds
modules. `ROOMS_AT_MOST` counts the folders of one subject as one room: algorithms/*,
simulation/* and recipes/corpora/* count once each, the two folders of espnet/ twice,
each other root module once, and __init__.py and __main__.py not at all.
"""

from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.import_reader import Import, Sources, module_name, read_imports, read_sources

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "espnet_distopt"
SOURCES = read_sources(ROOT, PACKAGE, "benchmarks")

FLOORS = [
    {"benchmarks"},
    {"__main__"},
    {"recipes/commands"},
    {"recipes/models"},
    {"recipes/hmm", "recipes/scoring"},
    {"recipes", "recipes/corpora"},
    {"bin"},
    {"espnet", "lightning"},
    {"__init__"},
    {"work_queue"},
    {"session", "simulation"},
    {"launch"},
    {"algorithms", "distributed"},
    {"optimizers"},
    {"core", "cluster", "monitoring"},
    {"files"},
    {"errors"},
]
"""The families, from the top floor to the lowest."""

ROOMS_AT_MOST = 22
SHARED_ROOM = {"algorithms", "simulation", "recipes/corpora", "recipes/models"}
"""Families that count as one room."""

MODULES_ALONE = {"algorithms", "recipes", "recipes/corpora", "recipes/models"}
"""Folders whose modules count by themselves in the search for circles, as they may lie
below the folders beside them (algorithms/base.py)."""

ARITHMETIC = {"algorithms", "core", "optimizers"}
"""Families that compute, and know neither processes nor time nor ESPnet."""

OUTSIDE_OF_ARITHMETIC = [
    "torch.distributed",
    "torch.multiprocessing",
    "threading",
    "_thread",
    "queue",
    "asyncio",
    "concurrent",
    "multiprocessing",
    "subprocess",
    "signal",
    "time",
    "datetime",
    "sched",
    "socket",
    "selectors",
    "espnet2",
    "lightning",
]

NOTHING_OF_TRAINING = {"recipes/corpora", "recipes/scoring", "recipes/hmm", "files"}
TRAINING = {
    "core",
    "algorithms",
    "optimizers",
    "distributed",
    "simulation",
    "session",
    "work_queue",
    "__init__",
}

BY_NAME = {"simulation/virtual_learner.py"}
"""Modules beside the driver that build the algorithm which a person names: the virtual
learner is to the simulation what the session is to processes."""

REGISTRY = {f"{PACKAGE}.algorithms", f"{PACKAGE}.algorithms.lifecycle"}
"""The registry, and the order in which the programs of any algorithm run."""


def family(name: str) -> str:
    """Return the family of a dotted name; "" if it is not of this repository."""
    top, *rest = name.split(".")
    if top == "benchmarks":
        return top
    if top != PACKAGE:
        return ""
    return "/".join(rest[:2]) if rest[:1] == ["recipes"] else (rest or ["__init__"])[0]


def inside(path: str) -> str:
    """Return a module's path inside the package."""
    return path.removeprefix(f"{PACKAGE}/")


def floor(name: str) -> int:
    """Return the height of a family's floor; the lowest is 0."""
    return next(n for n, each in enumerate(reversed(FLOORS)) if name in each)


# The rules. Each takes the imports and yields those that break it.

Rule = Callable[[list[Import]], Iterator[Import]]


def floors(imports: list[Import]) -> Iterator[Import]:
    """An import points down, or stays in its family."""
    for each in imports:
        own, other = family(module_name(each.path)), family(each.name)
        if other and own != other and floor(own) <= floor(other):
            yield each


def arithmetic(imports: list[Import]) -> Iterator[Import]:
    """Algorithms and what they build on know no processes, no clocks, no ESPnet."""
    for each in imports:
        if family(module_name(each.path)) in ARITHMETIC:
            yield from (each for name in OUTSIDE_OF_ARITHMETIC if each.reaches(name))


def espnet(imports: list[Import]) -> Iterator[Import]:
    """Only espnet/, bin/ and recipes/ import ESPnet."""
    for each in imports:
        own = family(module_name(each.path)).split("/")[0]
        known = own in {"espnet", "bin", "recipes", "benchmarks"}
        if each.reaches("espnet2") and not known:
            yield each


def lightning(imports: list[Import]) -> Iterator[Import]:
    """Only lightning/ imports Lightning, which is optional."""
    for each in imports:
        known = family(module_name(each.path)) in {"lightning", "benchmarks"}
        if each.reaches("lightning") and not known:
            yield each


def drivers(imports: list[Import]) -> Iterator[Import]:
    """The two drivers know no algorithm."""
    for each in imports:
        path = inside(each.path)
        if family(module_name(each.path)) not in {"distributed", "simulation"}:
            continue
        asks = path in BY_NAME and each.name in REGISTRY
        if path.startswith("simulation/study/") or asks:
            continue
        if each.reaches(f"{PACKAGE}.algorithms"):
            yield each


def training(imports: list[Import]) -> Iterator[Import]:
    """Corpora, scoring and files know nothing of training."""
    for each in imports:
        own = family(module_name(each.path))
        if own in NOTHING_OF_TRAINING and family(each.name) in TRAINING:
            yield each


def no_tests(imports: list[Import]) -> Iterator[Import]:
    """Nothing imports from tests/, under that name or as a test finds it."""
    own = {path.stem for path in (ROOT / "tests").glob("*.py")}
    for each in imports:
        if each.name.split(".")[0] in own | {"tests"}:
            yield each


RULES: list[Rule] = [floors, arithmetic, espnet, lightning, drivers, training, no_tests]


def breaches(sources: Sources) -> dict[tuple[str, str, str], str]:
    """Return (rule, module, what it imports) -> what to read, for all breaches."""
    imports = read_imports(sources)
    found = {}
    for rule in RULES:
        for each in rule(imports):
            name = each.name
            if rule is arithmetic:
                name = next(n for n in OUTSIDE_OF_ARITHMETIC if each.reaches(n))
            key = rule.__name__, inside(each.path), name
            found[key] = f"{each}: {rule.__doc__}"
    return found


def circle(sources: Sources) -> list[str]:
    """Return rooms that import each other in a circle; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for each in read_imports(sources):
        own, other = _room(module_name(each.path)), _room(each.name)
        if own and other and own != other:
            graph.setdefault(own, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _room(name: str) -> str:
    """Return what a module of the package counts as in the search for circles.

    That is its folder. A module directly in the package, or in one of `MODULES_ALONE`,
    counts by itself.
    """
    parts = name.split(".")
    if parts[0] != PACKAGE or len(parts) == 1:
        return ""
    is_folder = f"{name.replace('.', '/')}/__init__.py" in SOURCES
    alone = len(parts) == 2 or "/".join(parts[1:-1]) in MODULES_ALONE
    return name if is_folder or alone else name.rpartition(".")[0]


def rooms(sources: Iterable[str]) -> set[str]:
    """Return the rooms of the package, counted as the docstring above says."""
    found = set()
    for path in sources:
        folder, name = inside(path).rpartition("/")[::2]
        if path.startswith(PACKAGE) and not name.startswith("__"):
            shared = [
                each for each in SHARED_ROOM if f"{folder}/".startswith(f"{each}/")
            ]
            found.add(shared[0] if shared else folder or name)
    return found
