import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory


def write(path, content):
    with whole_directory(path, marker="mark") as directory:
        (directory / "mark").write_text(content)
        (directory / content).touch()


def test_new_and_replaced(tmp_path):
    path = tmp_path / "sub" / "corpus"
    for content in ("first", "second"):
        write(path, content)
        assert sorted(p.name for p in path.iterdir()) == sorted(["mark", content])
    assert [p.name for p in path.parent.iterdir()] == ["corpus"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_what_it_names_is_written(exists, tmp_path):
    disk, link = tmp_path / "disk" / "corpus", tmp_path / "corpus"
    if exists:
        disk.mkdir(parents=True)
    link.symlink_to(disk)
    for content in ("first", "second"):
        write(link, content)
        assert link.readlink() == disk
        assert sorted(p.name for p in disk.iterdir()) == sorted(["mark", content])
    assert [p.name for p in disk.parent.iterdir()] == ["corpus"]


def test_a_failure_changes_nothing(tmp_path):
    path = tmp_path / "corpus"
    write(path, "first")
    with pytest.raises(KeyboardInterrupt), whole_directory(path, "mark") as new:
        (new / "half").touch()
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["corpus"]
    assert (path / "first").exists()


PROGRAM = """
import sys, time
from pathlib import Path
from espnet_distopt.files.whole_directory import whole_directory
with whole_directory(Path(sys.argv[1]), marker="mark") as new:
    (new / "half").touch()
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that is writing the directory `corpus`."""
    command = [sys.executable, "-c", PROGRAM, tmp_path / "corpus"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)]
)
def test_a_signal_leaves_nothing_over(number, status, writer, tmp_path):
    write(tmp_path / "corpus", "first")
    writer.send_signal(number)
    assert writer.wait(timeout=30) == status
    assert [p.name for p in tmp_path.iterdir()] == ["corpus"]
    assert (tmp_path / "corpus" / "first").exists()


def test_what_a_kill_has_left_is_removed_later(writer, tmp_path):
    path = tmp_path / "corpus"
    write(path, "first")
    [left] = tmp_path.glob(".corpus.*")
    assert (left / "new" / "half").exists()  # The process lives.
    writer.kill()
    writer.wait(timeout=30)
    write(tmp_path / "corp", "other")
    assert left.exists()
    write(path, "second")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corp", "corpus"]


def test_a_kill_between_two_renamings_keeps_the_old_one(tmp_path):
    path, left = tmp_path / "corpus", tmp_path / ".corpus.8letters"
    write(path, "first")
    left.mkdir()
    (left / "lock").touch()
    path.rename(left / "old")
    with pytest.raises(KeyboardInterrupt), whole_directory(path, "mark"):
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["corpus"]
    assert (path / "first").exists()


def test_an_end_between_two_renamings_keeps_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "corpus"
    write(path, "first")
    replace = os.replace

    def interrupted(source, target):
        if source.name == "new":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, "second")
    assert [p.name for p in tmp_path.iterdir()] == ["corpus"]
    assert (path / "first").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_handler_of_a_signal_is_kept_or_restored(number, tmp_path):
    before = signal.getsignal(number)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, handler)
            with whole_directory(tmp_path / "corpus", "mark") as new:
                (new / "mark").touch()
                within = signal.getsignal(number)
                assert (within == handler) == (handler == signal.SIG_IGN)
            assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    with pytest.raises(InputError, match="not empty and has no mark"):
        write(tmp_path / "thesis", "x")
    with pytest.raises(InputError, match="is a file"):
        write(tmp_path / "thesis" / "chapter", "x")
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["chapter"]


@pytest.mark.parametrize("name", [".", "{cwd}"])
def test_the_current_directory_is_refused_before_the_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(name.format(cwd=tmp_path))
    with (
        pytest.raises(InputError, match="is the current directory or a mounted one"),
        whole_directory(path),
    ):
        pytest.fail("the body has begun")
