"""No tensor of an exchange is in a cycle of references.

Python frees such a tensor only when it looks for cycles, which may be many blocks
later: a learner then has several models more in memory than it needs.
"""

import gc
from typing import Any

import pytest
import torch

from espnet_distopt import Session
from espnet_distopt.algorithms import ALGORITHMS
from tests.processes import launch

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SIDE = 64
STEPS = 16
BLOCK = {"period": 4}


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Return every algorithm, with the options that change what it sends."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name, entry in ALGORITHMS.items():
        known = vars(entry.config()) if name != "hadpsgd" else {}
        plain = BLOCK if "period" in known else {}
        found.append((name, {"per_node": 2} if name == "hadpsgd" else plain))
        if "delay" in known:
            found.append((name, {**BLOCK, "delay": 2}))
        if "fragments" in known:
            found.append((name, {"period": 8, "delay": 1, "fragments": 2}))
        if "exchange" in known:
            found.append((name, {**plain, "exchange": "bfloat16"}))
    return [*found, ("local_sgd", {**BLOCK, "keep": 0.1})]


def garbage(name: str, options: dict[str, Any]) -> list[str]:
    """Train; return what has been in cycles, if a tensor of the model's size was."""
    linear = [torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(2)]
    model = torch.nn.Sequential(*linear)
    optimizer = torch.optim.Adam(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            session.begin_batch(1)
            optimizer.zero_grad()
            model(torch.ones(2, SIDE)).sum().backward()
            optimizer.step()
            session.step()

    with Session(model, optimizer, name, **options) as session:
        train()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            train()
            gc.collect()
            tensors = [t for t in gc.garbage if isinstance(t, torch.Tensor)]
            large = [t for t in tensors if t.numel() >= SIDE * SIDE]
            kinds = sorted({type(each).__qualname__ for each in gc.garbage})
        finally:
            gc.set_debug(0)
            gc.enable()
            gc.garbage.clear()
    return kinds if large else []


def train_all() -> dict[str, list[str]]:
    """Return the garbage of each case that has any."""
    found = {f"{name} {options}": garbage(name, options) for name, options in cases()}
    return {case: kinds for case, kinds in found.items() if kinds}


def test_what_an_exchange_has_needed_is_freed_at_once() -> None:
    assert launch(2, train_all, timeout=280) == [{}, {}]
