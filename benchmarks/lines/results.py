"""The results of earlier runs, as lines of JSON: one for each method and seed."""

import hashlib
import json
from pathlib import Path
from typing import Any

from report import machine

from espnet_distopt.files.yaml import read_yaml
from lines.methods import CONFIG, ORDER, SCALES, Method


class Results:
    """The results of the present settings; those of others stay in the file.

    Args:
        path: the file of the results, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        """Read the file, to which other runs may have added results."""
        if self._path.exists():
            whole = self._path.read_text(encoding="utf-8").rpartition("\n")[0]
            for line in whole.splitlines():
                record = json.loads(line)
                self._known[record["key"]] = record["result"]

    def __contains__(self, cell: tuple[Method, int]) -> bool:
        return _key(*cell) in self._known

    def __getitem__(self, cell: tuple[Method, int]) -> dict[str, Any]:
        return self._known[_key(*cell)]

    def add(self, method: Method, seed: int, result: dict[str, Any]) -> None:
        """Keep a result."""
        key, commit = _key(method, seed), machine()["commit"]
        record = {"key": key, "name": method.name, "seed": seed}
        record |= {"commit": commit, "result": result}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._known[key] = result


def _key(method: Method, seed: int) -> str:
    """Return the digest of all settings, so that none is changed unnoticed."""
    settings = [vars(method), SCALES[method.search], ORDER, read_yaml(CONFIG), seed]
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
