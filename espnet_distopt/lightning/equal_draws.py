"""Random draws that are the same on all learners, whatever their own random states.

Where learners take batches from each other, all of them must number the same batches.
"""

import hashlib
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from espnet_distopt.errors import InputError
from espnet_distopt.files.random_state import random_state, set_random_state
from espnet_distopt.session import Session


def agreed_seed(session: Session) -> int:
    """Return a seed that all learners have; they call this together.

    It follows from their random states, so that a run that goes on draws it again.
    """
    drawn = int(torch.randint(2**31, ()))
    return int(session.mean(float(drawn)))


@contextmanager
def seeded(seed: int, *owners: object) -> Generator[None, None, None]:
    """Inside, random numbers follow from a seed; after it, all is as it was before.

    Args:
        seed: the seed.
        owners: what may have a `generator` of its own, which is seeded, too.
    """
    own = random_state()
    had = (getattr(owner, "generator", None) for owner in owners)
    generators = [each for each in had if isinstance(each, torch.Generator)]
    states = [each.get_state() for each in generators]
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for each in generators:
        each.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(own)
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)


def check_equal(session: Session, batches: Sequence[Any]) -> None:
    """Raise InputError, on every learner, unless all of them have the same batches."""
    digest = hashlib.sha256(repr(batches).encode()).digest()
    number = float(int.from_bytes(digest[:2], "big"))
    mean, square = session.means([number, number**2])
    # The variance of N whole numbers that are not equal is at least (N - 1) / N**2.
    if square - mean**2 > 1e-4:
        raise InputError(
            f"learner {session.learner.rank}: the learners' loaders have different "
            "batches: give all of them the same dataset, and the same samples to their "
            "samplers (a random split needs a seed)"
        )
