"""A directory takes one run at a time, and is free once that run has ended."""

import errno
import fcntl
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from espnet_distopt.distributed.run_lock import LOCK, RunLock
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.one_run import lock_of_run, run_in
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from tests.espnet.toy import arguments
from tests.fork_server import PRELOAD

PRELOAD.append("espnet_distopt.espnet.training.tasks")

_FORK = multiprocessing.get_context("fork")


def train(directory: Path, pipe: Connection) -> None:
    """Hold the directory until told to end; with a data loader, which is forked."""
    with run_in(directory):
        own_lock().take(0)
        loader = _FORK.Process(target=time.sleep, args=(60,))
        loader.start()
        # Whoever looks at the file must not free it.
        (directory / LOCK).read_text()
        pipe.send(loader.pid)
        pipe.recv()
        loader.kill()
        loader.join()


@contextmanager
def running(directory: Path) -> Iterator[tuple[BaseProcess, Connection]]:
    here, there = _FORK.Pipe()
    run = _FORK.Process(target=train, args=(directory, there))
    run.start()
    loader = here.recv()
    try:
        yield run, here
    finally:
        run.kill()
        run.join()
        with suppress(ProcessLookupError):  # The run may have ended it.
            os.kill(loader, 9)


def own_lock() -> RunLock:
    own = lock_of_run()
    assert own is not None
    return own


def take(directory: Path, patience: float = 0) -> None:
    with run_in(directory):
        own_lock().take(patience)


def test_the_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    with running(exp) as (run, pipe):
        with pytest.raises(InputError) as refused:
            take(exp)
        holder = f"process {run.pid} on {socket.gethostname()}"
        assert str(refused.value) == (
            f"{exp}: another run trains there ({holder}): "
            "wait for it, stop it, or take another folder"
        )
        take(tmp_path / "other")
        pipe.send("end")
        run.join(20)
        take(exp)
        assert f"process {os.getpid()} on" in (exp / LOCK).read_text()


def test_a_killed_run_holds_nothing_though_its_data_loader_lives(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as (run, _):
        run.kill()
        run.join()
        take(tmp_path)


def test_a_run_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    with running(tmp_path) as (_, pipe):
        threading.Timer(0.5, pipe.send, ["end"]).start()
        take(tmp_path, patience=60)


def test_a_failure_frees_the_directory(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    with pytest.raises(OSError, match="full"), run_in(tmp_path):
        own_lock().take(0)
        raise OSError("full")
    assert lock_of_run() is None
    first.take(0)
    with pytest.raises(InputError, match="another run"):
        second.take(0)
    first.free()
    second.take(0)
    second.free()


def test_without_locks_it_warns_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(file: int, operation: int, lock: bytes) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "fcntl", unsupported)
    take(tmp_path)
    assert "no lock on this file system (Operation not supported)" in caplog.text


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written: Not a dir"):
        take(tmp_path / "file" / "exp")


def test_a_refused_run_leaves_the_others_configuration(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunLock.take, "__defaults__", (0.0,))
    config = tmp_path / "config.yaml"
    config.write_text("of: the first\n")
    with running(tmp_path), pytest.raises(InputError, match="another run trains"):
        DistoptASRTask.main(cmd=arguments(data, tmp_path))
    assert config.read_text() == "of: the first\n"
    assert lock_of_run() is None
