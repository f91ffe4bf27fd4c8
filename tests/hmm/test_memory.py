"""A graph that the machine has no memory for is refused before it is built."""

from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.hmm import memory
from espnet_distopt.hmm.memory import check_memory


def test_a_graph_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "_MEMORY", told)
    told.write_text("MemTotal:  9000000 kB\nMemAvailable:  1000000 kB\n")
    line = check_memory(4_000_000)
    assert line == "a graph of about 4,000,000 arcs takes 0.8 GB in each process"
    with pytest.raises(InputError, match=r"1\.2 GB .*, but this machine has 1\.0 GB"):
        check_memory(6_000_000)
    told.write_text("MemTotal:  9000000 kB\n")
    assert check_memory(6_000_000)
    told.unlink()  # as on a Mac
    assert check_memory(6_000_000)
