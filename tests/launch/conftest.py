"""No launcher outlives its test, not even one that has failed."""

import signal
from collections.abc import Iterator

import pytest

from tests.launch.launched import STARTED


@pytest.fixture(autouse=True)
def sighup_is_heard() -> Iterator[None]:
    """Let launchers hear SIGHUP, even if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def no_launcher_is_left() -> Iterator[None]:
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.communicate(timeout=60)
