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
from typing import Any

import json_lines
from report import machine

from convergence.training import Training

Result = dict[str, Any]


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
        compute: Callable[[list[Training]], list[Result]],
        workers: int,
        groups: Callable[[list[Training]], list[list[Training]]],
    ) -> None:
        self._path = path
        self._compute = compute
        self._workers = workers
        self._groups = groups
        lines = map(json.loads, json_lines.read(path))
        self._lines = {json.dumps(x["cell"], sort_keys=True): x for x in lines}

    def get(self, cell: Training) -> Result | None:
        """Return the result of a cell, or None if there is none yet."""
        line = self._lines.get(_key(cell))
        return line["result"] if line else None

    def where(self, cell: Training) -> dict[str, Any]:
        """Return the machine, commit and versions of a cell; empty if unknown."""
        found: dict[str, Any] = self._lines[_key(cell)].get("machine", {})
        return found

    def run(self, cells: Iterable[Training], until: float = float("inf")) -> bool:
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
        os.environ["OMP_NUM_THREADS"] = "1"  # The workers inherit it.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=spawn) as pool:
            try:
                return self._run(left, pool, until)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _run(
        self, left: list[Training], pool: ProcessPoolExecutor, until: float
    ) -> bool:
        """Compute cells, with no more groups of them under way than workers."""
        began, where = time.monotonic(), machine()
        waiting, number = self._groups(left)[::-1], 0
        under_way: dict[Future[list[Result]], list[Training]] = {}
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

    def _keep(self, cell: Training, result: Result, where: dict[str, Any]) -> None:
        line = {"cell": cell.key(), "result": result, "machine": where}
        self._lines[_key(cell)] = line
        json_lines.append(self._path, line)


@functools.cache  # A page asks for the same cells thousands of times.
def _key(cell: Training) -> str:
    return json.dumps(cell.key(), sort_keys=True)
