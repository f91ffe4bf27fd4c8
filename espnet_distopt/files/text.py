"""Lines of a corpus's text files, each with the place that an error names."""

from collections.abc import Iterator
from pathlib import Path

from espnet_distopt.errors import InputError


def read_text(path: Path) -> str:
    """Read a whole file.

    Raises:
        InputError: it is missing, unreadable, empty or not UTF-8; the message names
            file and, of the first bad byte, the line.
    """
    content = read_bytes(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}:{line}: expected UTF-8 text; if the file is in Latin-1, convert "
            "it with iconv -f LATIN1 -t UTF-8"
        ) from None


def read_bytes(path: Path) -> bytes:
    """Read a whole file as it is.

    Raises:
        InputError: it is missing, unreadable, or has nothing but white space.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not content.strip():
        raise InputError(f"{path}: empty")
    return content


def data_lines(text: str, path: Path, comment: str = ";;") -> Iterator[tuple[str, str]]:
    """Each line that is neither blank nor a comment, after its place `file:line`.

    Args:
        text: the file's, see `read_text`.
        path: named in the place.
        comment: what a line of comment starts with; NIST's sign by default.
    """
    # Not splitlines, which also splits at characters that a text may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.startswith(comment):
            yield f"{path}:{number}", line.rstrip("\r")
