"""The data of ESPnet trainings, which the tests of a file share."""

from pathlib import Path

import pytest

from tests.espnet.toy import write_toy_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    write_toy_data(root)
    return root
