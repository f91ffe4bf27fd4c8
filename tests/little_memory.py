"""A machine that has next to no memory left."""

from pathlib import Path

import pytest

from espnet_distopt.recipes.hmm import graph


@pytest.fixture
def little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check of a graph's memory find 1 kB."""
    (tmp_path / "meminfo").write_text("MemAvailable: 1 kB\n")
    monkeypatch.setattr(graph, "_MEMORY", tmp_path / "meminfo")
