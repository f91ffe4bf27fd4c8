"""Writes a figure to a file, in the format that the file's name says."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import whole_file

KINDS = ("png", "pdf", "svg")


def write_picture(figure: Figure, path: Path, **options: Any) -> None:
    """Write a figure under a temporary name, and then rename the file.

    Args:
        figure: The figure.
        path: The file; a name without an ending becomes a PNG.
        options: Further options of `Figure.savefig`.

    Raises:
        InputError: The ending is that of another format.
        OSError: The file cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower() or "png"
    if kind not in KINDS:
        allowed = ", ".join(f".{known}" for known in KINDS)
        raise InputError(f"{path}: a plot's file ends in one of {allowed}")
    with whole_file(path) as new:
        figure.savefig(new, format=kind, **options)
