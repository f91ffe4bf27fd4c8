"""The results of cells, as lines of JSON in one file for each recipe.

A line is appended when its cell is complete, so a run that is killed leaves the results
of all cells before. Results of other settings or of an earlier arithmetic stay in the
file, but are not used.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import json_lines

from espnet_distopt.errors import InputError
from recipes.cell import Cell

Record = dict[str, Any]
"""The keys `cell`, `version` and `result`, and what tells of the run."""


class Records:
    """The results of earlier runs and of this one.

    Args:
        folder: the folder of the files RECIPE.jsonl.
        version: a function that returns the present version of a cell.

    Raises:
        InputError: a file has a line that is no result.
    """

    def __init__(self, folder: Path, version: Callable[[Cell], dict[str, str]]) -> None:
        self._folder = folder
        self._version = version
        self._records: dict[str, Record] = {}
        for path in sorted(folder.glob("*.jsonl")):
            for record in _read(path):
                self._records[_key(record["cell"], record["version"])] = record

    def __contains__(self, cell: Cell) -> bool:
        return self._key(cell) in self._records

    def __getitem__(self, cell: Cell) -> Record:
        return self._records[self._key(cell)]

    def add(self, cell: Cell, result: Record, **about: Any) -> None:
        """Keep the result of a cell, with what is said about the run.

        Args:
            cell: the cell, which is complete.
            result: its figures.
            about: what else the line says, such as the machine.
        """
        version = self._version(cell)
        record = {"cell": cell.data(), "version": version, "result": result, **about}
        json_lines.append(self._folder / f"{cell.recipe}.jsonl", record)
        # JSON turns tuples into lists.
        self._records[self._key(cell)] = json.loads(json.dumps(record))

    def _key(self, cell: Cell) -> str:
        return _key(cell.data(), self._version(cell))


def _key(cell: dict[str, Any], version: dict[str, str]) -> str:
    return json.dumps([cell, version], sort_keys=True)


def _read(path: Path) -> list[Record]:
    records = []
    for number, line in enumerate(json_lines.read(path), 1):
        try:
            record = json.loads(line)
            Cell.parse(record["cell"])
            records.append({"version": {}, "result": {}} | record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}:{number}: not the result of a cell ({error!r}): remove it"
            ) from None
    return records
