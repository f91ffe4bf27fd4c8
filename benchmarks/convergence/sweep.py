"""The module computes the cells of an experiment in worker processes, each cell once.

A cell is one training, whose result goes into a file, so that a run can be resumed.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

Result = dict[str, Any]


class Sweep:
    """The results of cells, which a file of JSON lines keeps.

    A cell is a dataclass with all that its result depends on, so it is its own key.

    Args:
        path: the path of the file.
        compute: a function that returns the result of a cell; it must be at the top of
            a module, because worker processes import it.
        workers: the number of worker processes, which have one thread each.
    """

    def __init__(
        self, path: Path, compute: Callable[[Any], Result], workers: int
    ) -> None:
        self._path = path
        self._compute = compute
        self._workers = workers
        self._results = _read(path)

    def __getitem__(self, cell: Any) -> Result:
        return self._results[_key(cell)]

    def run(self, cells: Iterable[Any]) -> None:
        """Compute the cells that have no result yet, and print a line for each."""
        unique = {_key(cell): cell for cell in cells}
        left = {k: c for k, c in unique.items() if k not in self._results}
        print(f"{len(left)} of {len(unique)} cells to compute", flush=True)
        if not left:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.environ["OMP_NUM_THREADS"] = "1"  # The workers inherit it.
        spawn = multiprocessing.get_context("spawn")
        began = time.monotonic()
        with ProcessPoolExecutor(self._workers, mp_context=spawn) as pool:
            futures = {pool.submit(self._compute, cell): cell for cell in left.values()}
            try:
                for number, future in enumerate(as_completed(futures), 1):
                    cell, result = futures[future], future.result()
                    self._keep(cell, result)
                    minutes = (time.monotonic() - began) / 60
                    print(
                        f"{number}/{len(left)} {minutes:.1f} min: {cell}: {result}",
                        flush=True,
                    )
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _keep(self, cell: Any, result: Result) -> None:
        self._results[_key(cell)] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": asdict(cell), "result": result}) + "\n")


def _key(cell: Any) -> str:
    return json.dumps(asdict(cell), sort_keys=True)


def _read(path: Path) -> dict[str, Result]:
    """Read the results, after removing a last line that an earlier run left unfinished.

    Args:
        path: the path of the file, which may be missing.
    """
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    lines = [json.loads(line) for line in whole.splitlines()]
    return {json.dumps(x["cell"], sort_keys=True): x["result"] for x in lines}
