"""Cells of an experiment: computed once each, by worker processes of one thread."""

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
    """Results of cells, kept in a file of JSON lines, so that a run can be resumed.

    A cell is a dataclass of all that its result depends on; it is its own key.

    Args:
        path: the file.
        compute: result of a cell; a function at the top of a module.
        workers: processes.
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
        """Compute those of `cells` that have no result yet, with a line for each."""
        unique = {_key(cell): cell for cell in cells}
        left = {k: c for k, c in unique.items() if k not in self._results}
        print(f"{len(left)} of {len(unique)} cells to compute", flush=True)
        if not left:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.environ["OMP_NUM_THREADS"] = "1"  # for the workers
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
    """Read the results; a last line that was cut short is dropped from the file."""
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    lines = [json.loads(line) for line in whole.splitlines()]
    return {json.dumps(x["cell"], sort_keys=True): x["result"] for x in lines}
