"""A stop that is asked of a process group, in which processes read the data."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from espnet_distopt.espnet.training.learner_files import load_learner
from tests.espnet.toy import arguments
from tests.espnet.training.learners import read, train


class SignalGroup:
    """An injection: a signal to one's process group in the second step.

    Args:
        number: The signal.
        readers: A file that receives the numbers of the processes that read the data.
    """

    def __init__(self, number: int, readers: Path) -> None:
        self.number, self.readers = number, readers

    def __call__(self, rank: int) -> None:
        from espnet_distopt.session import Session

        # As in a command; the children of a fork server have another default.
        multiprocessing.set_start_method("fork", force=True)
        step = Session.step

        def signalling(session: Session) -> None:
            if session.learner.steps == 1:
                pids = [str(child.pid) for child in multiprocessing.active_children()]
                self.readers.write_text(" ".join(pids))
                os.killpg(os.getpgrp(), self.number)
                time.sleep(0.2)  # So that the end of a reader is noticed.
            step(session)

        Session.step = signalling  # type: ignore[method-assign]


def lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_reader_of_data_hinders_a_stop_or_outlives_it(
    number: int, code: int, data: Path, tmp_path: Path
) -> None:
    readers, log = tmp_path / "readers", tmp_path / "log"
    options = arguments(data, tmp_path / "exp", "--distopt", "allreduce")
    options += ["--num_workers", "1"]
    injection = SignalGroup(number, readers)
    assert train(options, 1, tmp_path / "meet", log, injection) == [code], read(log)
    saved = load_learner(tmp_path / "exp", 0, 1)
    assert (saved is not None) == (code == 75)
    [reader] = map(int, readers.read_text().split())
    deadline = time.monotonic() + 60  # PyTorch's look for their parent once in 5 s.
    while lives(reader) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not lives(reader)
