"""A file is written whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    whole_file,
    write_bytes,
    write_json,
    write_text,
)


@pytest.mark.parametrize(
    ("write", "content", "expected"),
    [
        (write_text, "caf\u00e9\n", b"caf\xc3\xa9\n"),
        (write_bytes, b"\x00\xff", b"\x00\xff"),
        (write_json, {"a": [1]}, b'{\n "a": [\n  1\n ]\n}\n'),
    ],
)
def test_a_file_is_written_and_replaced(
    write: Callable[[Path, Any], None], content: Any, expected: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    for _ in range(2):
        write(path, content)
        assert path.read_bytes() == expected
        assert list(tmp_path.iterdir()) == [path]
        path.write_bytes(b"old and longer than the new one")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_earlier_file(
    error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(error), whole_file(path) as new:
        new.write_text("half of the n")
        assert path.read_text() == "old"
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_of_a_new_file_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "file.json", object())
    with pytest.raises(ValueError, match="before a file"), whole_file(tmp_path / "a"):
        raise ValueError("before a file")
    assert not list(tmp_path.iterdir())


def test_processes_of_equal_numbers_may_write_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of two containers often have them."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    path = tmp_path / "file"
    with whole_file(path) as one:
        one.write_text("one")
        with whole_file(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one"
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_stays_and_leads_to_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    link, page = tmp_path / "latest.html", tmp_path / "web" / "page.html"
    page.write_text("old")
    link.symlink_to(page)
    write_text(link, "new")
    assert link.is_symlink() and page.read_text() == "new"
    assert list(page.parent.iterdir()) == [page]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """What holds for a pipe holds for a device; root could replace /dev/null."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(path, "new")
        assert os.read(reader, 100) == b"new"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_the_mode_of_the_new_file_is_kept(tmp_path: Path) -> None:
    with whole_file(tmp_path / "job.sh") as new:
        new.write_text("#!/bin/sh\n")
        new.chmod(0o755)
    assert os.access(tmp_path / "job.sh", os.X_OK)


@pytest.mark.parametrize("sync", [False, True])
def test_the_content_is_on_the_disk_before_the_file_has_its_name(
    sync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    replace = os.replace

    def note_replace(source: Path, target: Path) -> None:
        calls.append("rename")
        replace(source, target)

    def note_sync(file: int) -> None:
        calls.append(f"sync {os.fstat(file).st_size} bytes")

    monkeypatch.setattr("os.replace", note_replace)
    monkeypatch.setattr("os.fsync", note_sync)
    with whole_file(tmp_path / "file", sync=sync) as new:
        new.write_text("12345")
    assert calls == ["sync 5 bytes", "rename"][not sync :]


def test_a_failed_write_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "no" / "file.txt"
    with (
        pytest.raises(InputError, match=r"no/file\.txt: cannot be written: No such"),
        explain_failed_write(path),
    ):
        write_text(path, "new")
    with pytest.raises(KeyError), explain_failed_write(path):
        raise KeyError  # is no fault of the file


def test_earlier_results_are_removed(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    earlier.write_text("")
    remove_earlier(earlier)
    remove_earlier(tmp_path / "no folder", "text")
    assert not earlier.exists()
    for name in ("text", "token"):
        (tmp_path / name).touch()
    remove_earlier(tmp_path, "text", "never was", "token")
    assert not list(tmp_path.iterdir())
    earlier.write_text("")
    with pytest.raises(InputError, match=r"earlier: cannot be written: Not a dir"):
        remove_earlier(earlier, "text")


def test_an_input_is_no_earlier_result(tmp_path: Path) -> None:
    text, token, link = (tmp_path / name for name in ("text", "token", "link"))
    text.touch()
    token.touch()
    link.symlink_to(text)
    with pytest.raises(InputError, match=r"/text: an input that would be overwritten"):
        remove_earlier(tmp_path, "token", "text", inputs=[None, tmp_path / "no", link])
    assert text.exists() and token.exists()
    remove_earlier(tmp_path, "token", inputs=[text])
    assert text.exists() and not token.exists()
