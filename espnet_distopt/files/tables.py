"""Tables of Kaldi data directories: UTF-8 files with an id and its value on each line.

The lines are sorted as by `LC_ALL=C sort`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text

Table = Mapping[str, str]
_Value = TypeVar("_Value")


def read_table(path: Path, parse: Callable[[str], _Value]) -> dict[str, _Value]:
    """Read a file of ids and values, which must be sorted, without blank lines.

    Args:
        path: The file.
        parse: Makes the value of a line from the text after its id (`str` keeps the
            text), or raises ValueError with what was expected.

    Raises:
        InputError: The file cannot be read, or is not of this form, or an id comes
            twice; the message names the line.
    """
    table: dict[str, _Value] = {}
    above = ""
    # Not splitlines, which also splits at characters that a text may contain.
    lines = read_text(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        key, *rest = line.split(maxsplit=1)[:2] or [""]
        if not key:
            raise InputError(f"{where}: blank line")
        if key in table:
            raise InputError(f"{where}: {key} comes twice")
        if key < above:
            raise InputError(
                f"{where}: {key} must come before {above}: sort the file with "
                "LC_ALL=C sort"
            )
        try:
            table[key] = parse(rest[0].rstrip() if rest else "")
        except ValueError as error:
            raise InputError(f"{where}: expected {error}") from None
        above = key
    return table


def write_table(path: Path, table: Mapping[str, object]) -> None:
    """Write ids and values, sorted by id.

    A failed write may leave a part of the file; `whole_directory` or `whole_file`
    around it prevents that.

    Raises:
        InputError: An id has a blank in it, or a line a line break.
    """
    lines = []
    for key in sorted(table):  # by code point: the order of the C locale over UTF-8
        line = f"{key} {table[key]}".rstrip()
        if key.split() != [key] or "\n" in line:
            raise InputError(f"{path.name}: space in an id or line break: {line!r}")
        lines.append(f"{line}\n")
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def one_field(value: str) -> str:
    """Return a value after checking that it has no blank; a `parse` of `read_table`."""
    if len(value.split()) != 1:
        raise ValueError("'utterance speaker'")
    return value


def counted(key: str, units: str) -> Callable[[str], int]:
    """Return a `parse` of `read_table` for numbers of units, such as of samples."""

    def parse(value: str) -> int:
        if not value.isdecimal():
            raise ValueError(f"'{key} number-of-{units}'")
        return int(value)

    return parse


def same_ids(
    path: Path,
    name: str,
    table: Mapping[str, object],
    other_name: str,
    other: Mapping[str, object],
) -> None:
    """Check that two tables of the directory `path` have the same ids.

    Raises:
        InputError: They don't; the message names the line of an id that one lacks.
    """
    for one, ones, two, twos in (
        (name, table, other_name, other),
        (other_name, other, name, table),
    ):
        for key in ones:
            if key not in twos:
                where = line_of(path, one, ones, key)
                raise InputError(f"{where}: {key} is not in {path / two}")


def line_of(path: Path, name: str, table: Mapping[str, object], key: str) -> str:
    """Return the place `file:line` of the id `key` in a table of a directory."""
    # The files are sorted and have one id a line, so the rank of an id is its line.
    return f"{path / name}:{sorted(table).index(key) + 1}"
