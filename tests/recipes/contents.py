"""What is in a directory, so that tests can see whether it has changed."""

from pathlib import Path


def contents(root: Path) -> dict[str, bytes]:
    """Return the files below a directory by their paths there."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }
