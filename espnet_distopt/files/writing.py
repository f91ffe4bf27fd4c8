"""Writes files whole or not at all.

A file is written under a temporary name in its own folder and then renamed, which the
file system does in one step. So nobody ever reads a part of a file, and a write that
fails leaves the earlier file as it was.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from espnet_distopt.errors import InputError


@contextmanager
def whole_file(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Give the body a path to write to, which becomes `path` if the body succeeds.

    If the body fails or is interrupted, `path` is as it was and nothing is left over.
    A link stays one: what it leads to is replaced. A device or a pipe, such as
    /dev/stdout, is written to.

    Args:
        path: The file to write or to replace; its folder must exist.
        sync: Whether the content is on the disk before the file gets its name, so that
            even a machine that crashes leaves the earlier file or the whole new one.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path  # Root could put a file in its place, for all programs to find.
        return
    path = Path(os.path.realpath(path))
    # Two processes may write one file, and those of two containers have equal numbers.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield temporary
        if sync:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    with whole_file(path) as new:
        new.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes, whole or not at all."""
    with whole_file(path) as new:
        new.write_bytes(content)


def write_json(path: Path, content: Any) -> None:
    """Write what JSON can hold, indented by one blank a level, whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def remove_earlier(out: Path, *names: str, inputs: Iterable[Path | None] = ()) -> None:
    """Remove results of an earlier run, so that a run that fails leaves none.

    Args:
        out: The file, or the folder of the files.
        names: The names of the files in the folder; none means that `out` is the file.
        inputs: Files that the run is going to read; None and missing ones are skipped.

    Raises:
        InputError: One cannot be removed; the message names `out` and says why. Or one
            is an input; then nothing is removed.
    """
    paths = [out / name for name in names] or [out]
    with explain_failed_write(out):
        given = [path for path in inputs if path is not None and path.exists()]
        for path in paths:
            if path.exists() and any(map(path.samefile, given)):
                raise InputError(
                    f"{path}: an input that would be overwritten: name another --out"
                )
        for path in paths:
            path.unlink(missing_ok=True)


@contextmanager
def explain_failed_write(path: Path) -> Iterator[None]:
    """Turn an OSError of the body into an InputError that names `path`.

    Raises:
        InputError: The body could not write; the message says why.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
