"""No launcher outlives its test, not even one that has failed."""

from collections.abc import Iterator

import pytest

from tests.launch.launched import STARTED


@pytest.fixture(autouse=True)
def no_launcher_is_left() -> Iterator[None]:
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.communicate(timeout=60)
