"""Learners that are slowed down on purpose, to see what a slow machine does to a run.

A slowed learner is stopped and continued by signals, five times a second, so that it
computes, communicates and validates for only a share of the time. Its program cannot
tell this from a machine that it shares with others.
"""

import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from espnet_distopt.errors import InputError
from espnet_distopt.launch.learner import Learner

PERIOD = 0.2
"""Seconds; far below the silence after which a learner counts as dead."""


@contextmanager
def slowed(learners: Sequence[Learner], factors: Mapping[int, float]) -> Iterator[None]:
    """Let learners of some ranks run for one part in `factors[rank]` of the time."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=_slow, args=(each, factors[each.rank], ended))
        for each in learners
        if each.rank in factors
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _slow(learner: Learner, factor: float, ended: threading.Event) -> None:
    running = PERIOD / factor
    while not ended.wait(running):
        learner.send(signal.SIGSTOP)
        ended.wait(PERIOD - running)
        learner.send(signal.SIGCONT)


def parse_slow(text: str, learners: int) -> dict[int, float]:
    """Return the factor of each learner in a list such as `1:2,3:10`.

    Raises:
        InputError: It is no such list, or there is no such learner.
    """
    factors: dict[int, float] = {}
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"(\d{1,6}):(\d+(?:\.\d+)?)", part.strip())
        if not found or not float(found[2]) >= 1:
            raise InputError(
                f"--slow {part}: expected LEARNER:FACTOR with a factor from 1, as 1:2"
            )
        if int(found[1]) >= learners:
            raise InputError(f"--slow {part}: learners are 0 to {learners - 1}")
        factors[int(found[1])] = float(found[2])
    return factors
