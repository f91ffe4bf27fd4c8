"""Packages as pip leaves them: modules, and a *.dist-info with their entry points."""

from pathlib import Path

from espnet_distopt.algorithms.plugins import GROUP


def install(folder: Path, name: str, code: str, **points: str) -> None:
    """Write module `name` with `code`, and the algorithms that its package adds.

    Args:
        folder: a folder of `sys.path`.
        points: name of an algorithm -> "module:object".
    """
    (folder / f"{name}.py").write_text(code)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {value}\n" for key, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
