"""A machine on which no more processes can be started."""

import errno
import os
import subprocess
import time
from typing import Any

import pytest

from espnet_distopt.bin import launch


@pytest.mark.parametrize("started", range(4))
def test_processes_that_cannot_be_started_end_in_one_line(
    started: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The watchdog, the store and two learners; those that were started are killed."""
    processes: list[subprocess.Popen[bytes]] = []
    opened = subprocess.Popen

    def limited(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if len(processes) == started:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        processes.append(opened(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", limited)
    with pytest.raises(SystemExit) as end:
        launch.main(["--nproc", "2", "--", "/bin/sleep", "60"])
    assert end.value.code == 2
    *_, line = capfd.readouterr().err.splitlines(keepends=True)
    assert line == (
        "error: no process can be started: Resource temporarily unavailable; the limit "
        "of processes (ulimit -u) or the memory of this machine may be used up\n"
    )
    deadline = time.monotonic() + 10
    while any(process.poll() is None for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
