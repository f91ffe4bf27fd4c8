"""A directory takes one run at a time, and is free once that run has ended."""

import errno
import fcntl
import multiprocessing
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.one_run import LOCK, only_run, refuse_if_taken
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from tests.fork_server import PRELOAD
from tests.processes import launch

# The processes of `launch` import this module, and so ESPnet.
PRELOAD.append("espnet_distopt.espnet.training.tasks")

_FORK = multiprocessing.get_context("fork")


def train(directory: Path, pipe: Connection) -> None:
    """Hold the directory until told to end; with a data loader, which is forked."""
    with only_run(directory):
        loader = _FORK.Process(target=time.sleep, args=(60,))
        loader.start()
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
        end_loader(loader)


def end_loader(loader: int) -> None:
    try:
        os.kill(loader, 9)
    except ProcessLookupError:
        return  # the run ended it


def test_the_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    with running(exp) as (run, pipe):
        with pytest.raises(InputError) as refused, only_run(exp):
            pass
        holder = f"process {run.pid} on {socket.gethostname()}"
        assert str(refused.value) == (
            f"{exp}: another run trains there ({holder}): "
            "wait for it, stop it, or take another --output_dir"
        )
        with pytest.raises(InputError) as early:
            refuse_if_taken(exp)
        assert str(early.value) == str(refused.value)
        with only_run(tmp_path / "other"):
            pass
        pipe.send("end")
        run.join(20)
        refuse_if_taken(exp)
        with only_run(exp):
            assert f"process {os.getpid()} on" in (exp / LOCK).read_text()


def test_a_killed_run_holds_nothing_though_its_data_loader_lives(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as (run, _):
        run.kill()
        run.join()
        with only_run(tmp_path):
            pass


def test_a_failure_frees_the_directory(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), only_run(tmp_path):
        raise OSError("full")
    free, told = _FORK.Pipe()
    other = _FORK.Process(target=lock_and_tell, args=(tmp_path, told))
    other.start()
    assert free.recv() == "held"
    other.join()


def lock_and_tell(directory: Path, pipe: Connection) -> None:
    with only_run(directory):
        pipe.send("held")


def enter(directory: Path) -> str:
    try:
        with only_run(directory):
            return "runs"
    except InputError as error:
        return f"refused: {error}"
    except SystemExit as end:
        return f"exit {end.code}"


def enter_both(taken: Path, free: Path) -> tuple[str, str]:
    return enter(taken), enter(free)


def test_learners_enter_together_or_not_at_all(tmp_path: Path) -> None:
    with running(tmp_path / "taken") as (run, _):
        first, second = launch(2, enter_both, tmp_path / "taken", tmp_path / "free")
    assert f"process {run.pid} on" in first[0]
    assert second[0] == "exit 2"  # the message is learner 0's
    assert (first[1], second[1]) == ("runs", "runs")


def test_without_locks_it_warns_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(file: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "lockf", unsupported)
    with only_run(tmp_path):
        pass
    assert "no lock on this file system (Operation not supported)" in caplog.text


def test_a_refused_run_leaves_the_others_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("of: the first\n")
    command = [*["--output_dir", str(tmp_path)], *["--ngpu", "0"]]
    with running(tmp_path), pytest.raises(InputError, match="another run trains"):
        DistoptASRTask.main(
            cmd=[*command, *["--token_list", "none", "--distopt", "bmuf"]]
        )
    assert config.read_text() == "of: the first\n"
    refuse_if_taken(tmp_path / "missing")
