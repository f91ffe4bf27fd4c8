"""Which cells there are, the most telling first."""

from collections.abc import Iterable, Iterator

from espnet_distopt.algorithms import ALGORITHMS
from recipes.cell import Cell, Options

LOCAL: Options = (("second_moment", "local"),)
CONSISTENT: Options = (("second_moment", "consistent"),)
NODES: Options = (("per_node", 2),)
BLOCKS: Options = (("period", 8),)
MOMENTUM: Options = (("period", 8), ("warmup", 150), *LOCAL)
"""Block momentum begins after a fifth of the steps of the strings of digits."""

RATES = (None, 0.0015, 0.00075)
"""BMUF's learning rates: that of all-reduce, a half and a quarter of it."""

OTHERS: dict[str, Options] = {
    "bmuf": LOCAL,
    "bmuf_adam": LOCAL,
    "diloco": (("period", 50),),
}
"""What else the algorithms with block momentum were tried with."""

SHORT: dict[str, Options] = {
    name: (("period", 4),) for name in ("bmuf", "bmuf_adam", "local_sgd")
}
"""Blocks of half the length, for what learners drift apart on faster."""

AVERAGING: dict[str, Options] = {"adpsgd": (), "hadpsgd": NODES, "local_sgd": BLOCKS}
"""The algorithms that average models, with their options."""


def plan() -> list[Cell]:
    """Return all cells in the order in which they are to be run."""
    return [*_digits(), *_sizes(), *_others()]


def defaults() -> list[Cell]:
    """Return the cells of all algorithms at their defaults, seed by seed.

    After them come the cells with other options. H-ADPSGD has nodes of two, and with
    two learners it would be all-reduce.
    """
    methods = {name: NODES if name == "hadpsgd" else () for name in ALGORITHMS}
    pairs = {name: methods[name] for name in methods if name != "hadpsgd"}
    cells = [
        cell
        for seed in range(3)
        for recipe in ("fsdd", "fsdd_hybrid", "mini_ocr", "mini_swbd")
        for learners, those in ((2, pairs), (4, methods))
        for cell in _cells(recipe, learners, those, [seed])
    ]
    cells += _cells("fsdd", 4, methods, (3, 4))
    for recipe, lr in (("fsdd", 0.0015), ("fsdd_hybrid", 0.002)):
        cells += _cells(recipe, 4, OTHERS, range(3))
        cells += _cells(recipe, 4, {"d1d_grad": ()}, range(3), lr)
    cells += _cells("mini_ocr", 4, OTHERS, range(3))
    for learners in (2, 4):
        cells += _cells("mini_swbd", learners, OTHERS, range(3))
        cells += _cells("mini_swbd", learners, {"local_sgd": LOCAL}, range(3))
    for recipe in ("mini_swbd", "mini_ocr"):
        cells += _cells(recipe, 4, SHORT, range(3))
    return cells


def _digits() -> Iterator[Cell]:
    """Yield the cells of the main comparison: digits, four learners, five seeds."""
    seeds = range(5)
    yield from _cells("fsdd", 4, {"allreduce": ()}, seeds)
    yield from _cells("fsdd", 4, _with(LOCAL), seeds)
    yield from _cells("fsdd", 4, _with(CONSISTENT), seeds)
    for lr in RATES:
        yield from _cells("fsdd", 4, {"bmuf_adam": MOMENTUM}, seeds, lr)
    at_once: Options = (*BLOCKS, ("warmup", 0), *LOCAL)
    yield from _cells("fsdd", 4, {"bmuf_adam": at_once}, seeds, RATES[1])
    # What BMUF emulates is one learner with the batch of one learner.
    for seed in seeds:
        yield Cell(recipe="fsdd", learners=1, algorithm="none", batch_size=4, seed=seed)
    yield from _cells("fsdd", 4, {"none": (), "adasum": ()}, seeds)


def _sizes() -> Iterator[Cell]:
    """Yield the cells of digits with fewer and with more learners."""
    methods: dict[str, Options] = {
        "allreduce": (),
        "adpsgd": CONSISTENT,
        "bmuf_adam": MOMENTUM,
    }
    for learners in (2, 8):
        yield from _cells("fsdd", learners, methods, range(3))


def _others() -> Iterator[Cell]:
    """Yield the cells of the other recipes."""
    methods: dict[str, Options] = {
        "allreduce": (),
        "adpsgd": CONSISTENT,
        "bmuf_adam": (),
    }
    averaging = {name: methods[name] for name in ("allreduce", "adpsgd")}
    yield from _cells("fsdd_conformer", 4, averaging, range(5))
    for recipe, learners in (("mini_swbd", 2), ("mini_ocr", 4)):
        yield from _cells(recipe, learners, methods, range(3))


def _with(more: Options) -> dict[str, Options]:
    return {name: (*options, *more) for name, options in AVERAGING.items()}


def _cells(
    recipe: str,
    learners: int,
    methods: dict[str, Options],
    seeds: Iterable[int],
    lr: float | None = None,
) -> Iterator[Cell]:
    """Yield the cells seed by seed, so that a part of them is paired already."""
    for seed in seeds:
        for algorithm, options in methods.items():
            yield Cell(
                recipe=recipe,
                learners=1 if algorithm == "none" else learners,
                algorithm=algorithm,
                options=options,
                lr=lr,
                seed=seed,
            )
