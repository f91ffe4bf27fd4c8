"""Reads text files, and gives each line with the place that a message names."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from espnet_distopt.errors import InputError


def read_text(path: Path, *, may_be_empty: bool = False) -> str:
    """Read a whole file, without the byte-order mark that some editors begin it with.

    Raises:
        InputError: It is missing, empty or not UTF-8, or cannot be read; the message
            names the file, and the line of the first bad byte.
    """
    content = read_bytes(path, may_be_empty=may_be_empty)
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}:{line}: expected UTF-8 text; if the file is in Latin-1, convert "
            "it with iconv -f LATIN1 -t UTF-8"
        ) from None


def read_bytes(path: Path, *, may_be_empty: bool = False) -> bytes:
    """Read a whole file as bytes.

    Raises:
        InputError: It is missing, cannot be read, or has nothing but white space and a
            byte-order mark where it must not be empty.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not may_be_empty and not content.removeprefix(codecs.BOM_UTF8).strip():
        raise InputError(f"{path}: empty")
    return content


def data_lines(text: str, path: Path, comment: str = ";;") -> Iterator[tuple[str, str]]:
    """Yield the place `file:line` and the text of each line with data.

    Blank lines are left out, and comments, by default with the sign of NIST's files.
    """
    # Not splitlines, which also splits at characters that a text may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith(comment):
            yield f"{path}:{number}", line.rstrip("\r")
