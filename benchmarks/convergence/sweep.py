"""The module computes the cells of an experiment in worker processes, each cell once.

A cell is one training, whose result goes into a file, so that a run can be resumed.
"""

import functools
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from report import machine

Result = dict[str, Any]


class Cell(Protocol):
    """A frozen dataclass with all that a result depends on."""

    def key(self) -> dict[str, Any]:
        """Return what tells the cell from all others, for JSON."""
        ...


class Sweep:
    """The results of cells, which a file of JSON lines keeps.

    Each line has the cell, its result, and the machine, the commit and the versions of
    programs with which it was computed.

    Args:
        path: the path of the file.
        compute: a function that returns the results of some cells; it must be at the
            top of a module, because worker processes import it.
        workers: the number of worker processes, which have one thread each.
        groups: a function that divides cells into those that are computed together.
    """

    def __init__(
        self,
        path: Path,
        compute: Callable[[list[Any]], list[Result]],
        workers: int,
        groups: Callable[[list[Any]], list[list[Any]]],
    ) -> None:
        self._path = path
        self._compute = compute
        self._workers = workers
        self._groups = groups
        self._lines = _read(path)

    def __getitem__(self, cell: Cell) -> Result:
        result: Result = self._lines[_key(cell)]["result"]
        return result

    def get(self, cell: Cell) -> Result | None:
        """Return the result of a cell, or None if there is none yet."""
        return self[cell] if _key(cell) in self._lines else None

    def where(self, cell: Cell) -> dict[str, Any]:
        """Return the machine, commit and versions of a cell; empty if unknown."""
        found: dict[str, Any] = self._lines[_key(cell)].get("machine", {})
        return found

    def run(self, cells: Iterable[Any], until: float = float("inf")) -> bool:
        """Compute the cells that have no result yet, and print a line for each.

        Args:
            cells: the cells.
            until: the time by `time.monotonic` after which no cell is begun.

        Returns:
            Whether all cells have a result.
        """
        unique = {_key(cell): cell for cell in cells}
        left = [c for k, c in unique.items() if k not in self._lines]
        print(f"{len(left)} of {len(unique)} cells to compute", flush=True)
        if not left or time.monotonic() >= until:
            return not left
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(self._path)
        os.environ["OMP_NUM_THREADS"] = "1"  # The workers inherit it.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=spawn) as pool:
            try:
                return self._run(left, pool, until)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _run(self, left: list[Any], pool: ProcessPoolExecutor, until: float) -> bool:
        """Compute cells, with no more groups of them under way than workers."""
        began, where = time.monotonic(), machine()
        waiting, number = self._groups(left)[::-1], 0
        under_way: dict[Future[list[Result]], list[Any]] = {}
        while True:
            while waiting and len(under_way) < self._workers:
                if time.monotonic() >= until:
                    break
                cells = waiting.pop()
                under_way[pool.submit(self._compute, cells)] = cells
            if not under_way:
                return not waiting
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                cells, results = under_way.pop(future), future.result()
                for cell, result in zip(cells, results, strict=True):
                    self._keep(cell, result, where)
                    number += 1
                    minutes = (time.monotonic() - began) / 60
                    print(
                        f"{number}/{len(left)} {minutes:.1f} min: {cell}: {result}",
                        flush=True,
                    )

    def _keep(self, cell: Cell, result: Result, where: dict[str, Any]) -> None:
        line = {"cell": cell.key(), "result": result, "machine": where}
        self._lines[_key(cell)] = line
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@functools.cache  # A page asks for the same cells thousands of times.
def _key(cell: Cell) -> str:
    return json.dumps(cell.key(), sort_keys=True)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines by the keys of their cells.

    A last line that has no end is left out, because an earlier run was stopped while it
    wrote the line.

    Args:
        path: the path of the file, which may be missing.
    """
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in _whole(path.read_text("utf-8")).splitlines()]
    return {json.dumps(x["cell"], sort_keys=True): x for x in lines}


def _whole(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _remove_unfinished(path: Path) -> None:
    """Remove a last line without an end, so that the next one does not join it."""
    if path.exists():
        text = path.read_text("utf-8")
        if _whole(text) != text:
            path.write_text(_whole(text), encoding="utf-8")
