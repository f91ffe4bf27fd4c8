"""Divides the lines of IAM into training, development and test.

The archive's own lists ("large writer independent text line recognition task") have
6161 lines for training, 900 + 940 for development and 1861 for test. The Aachen split
has two versions, with 6482 or 6161, 976 or 966, and 2915 lines; users give its lists of
ids themselves. Results on different splits do not compare, so a report should name the
split and its numbers of lines.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text

Split = Mapping[str, Mapping[str, str]]
"""The ids of lines or forms of each set, with the place `file:line` that lists each."""

OWN_LISTS = {
    "train": ("trainset.txt",),
    "dev": ("validationset1.txt", "validationset2.txt"),
    "test": ("testset.txt",),
}


class _OfForm(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def form(self) -> str: ...


_Line = TypeVar("_Line", bound=_OfForm)


def own_lists(root: Path) -> dict[str, list[Path]]:
    """Find the archive's own lists, in `root` or in a directory of it.

    Raises:
        InputError: A list is missing, or is there twice.
    """
    return {
        name: [_find(root, file) for file in files] for name, files in OWN_LISTS.items()
    }


def read_split(lists: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, str]]:
    """Read the lists of ids of each set, one id a line.

    Raises:
        InputError: A list is missing, empty or malformed, or an id is listed twice.
    """
    seen: dict[str, str] = {}
    split: dict[str, dict[str, str]] = {}
    for name, paths in lists.items():
        split[name] = {}
        for path in paths:
            for where, line in data_lines(read_text(path), path, comment="#"):
                fields = line.split()
                if len(fields) != 1:
                    raise InputError(f"{where}: expected one id of a line or a form")
                key = fields[0]
                if key in seen:
                    raise InputError(f"{where}: {key} is listed before, at {seen[key]}")
                seen[key] = split[name][key] = where
    return split


def assign(
    lines: Mapping[str, _Line], split: Split
) -> tuple[dict[str, list[_Line]], dict[str, dict[str, str]]]:
    """Give each set its lines.

    Returns:
        The lines of each set in the order of their ids; and the ids of each set that no
        line or form has, with the reason.

    Raises:
        InputError: A line is in two sets, for instance by its own id and by that of its
            form, or a set has no line.
    """
    forms: dict[str, list[str]] = {}
    for key, line in lines.items():
        forms.setdefault(line.form, []).append(key)
    owner: dict[str, str] = {}
    missing: dict[str, dict[str, str]] = {}
    for name, ids in split.items():
        missing[name] = {}
        for key, where in ids.items():
            found = [key] if key in lines else forms.get(key, [])
            if not found:
                missing[name][key] = f"no such line or form: {where}"
            for each in found:
                if each in owner:
                    raise InputError(f"{where}: {each} is also in set {owner[each]}")
                owner[each] = name
    sets: dict[str, list[_Line]] = {name: [] for name in split}
    for key in sorted(owner):
        sets[owner[key]].append(lines[key])
    for name, chosen in sets.items():
        if not chosen:
            first = next(iter(missing[name].values()), "the list is empty")
            raise InputError(f"set {name} has no line: {first}")
    return sets, missing


def _find(root: Path, file: str) -> Path:
    found = sorted({*root.glob(file), *root.glob(f"*/{file}")})
    if not found:
        raise InputError(
            f"{root}: no {file} in it or in a directory of it: unpack "
            "largeWriterIndependentTextLineRecognitionTask.zip there, or give lists "
            "with --train_ids, --dev_ids and --test_ids"
        )
    if len(found) > 1:
        raise InputError(f"{root}: {file} is there twice: {found[0]} and {found[1]}")
    return found[0]
