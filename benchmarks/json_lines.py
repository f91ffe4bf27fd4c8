"""Files of JSON lines, to which a line is added as soon as a result is there.

A run that is killed while it writes leaves a last line without an end. Readers leave it
out, and the next line takes its place.
"""

import json
import os
from pathlib import Path
from typing import Any


def read(path: Path) -> list[str]:
    """Return the complete lines of a file, which may be missing."""
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


def append(path: Path, record: dict[str, Any]) -> None:
    """Add a line to a file, which is made with its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(record).encode() + b"\n")
