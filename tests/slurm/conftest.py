"""One private Slurm for all tests of this directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm.daemons import MiniSlurm, missing_programs


@pytest.fixture(scope="session")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniSlurm]:
    if missing := missing_programs():
        message = f"no {', '.join(missing)} (Debian: slurm-wlm, munge)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    cluster = MiniSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(
    daemons: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MiniSlurm]:
    """The cluster, free of jobs, in an empty directory."""
    directory = tmp_path / "a recipe"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("SLURM_CONF", daemons.environment["SLURM_CONF"])
    yield daemons
    daemons.cancel_all()
