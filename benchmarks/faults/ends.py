"""Two faults that are cases of their own: the store dies, and a disk is full."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from espnet_distopt.errors import InputError
from faults.records import Process
from faults.run import Run
from faults.settings import Settings

DISK = 512 * 1024
"""Bytes of the small disk to which a learner saves."""


def store_death(directory: Path, settings: Settings, generator: random.Random) -> Any:
    """Kill the process that keeps the rendezvous store, and see how all end."""
    run = Run(directory, settings)
    try:
        run.until(run.all_step)
        run.calm(generator.uniform(1, 4))
        learners = [run.latest(rank) for rank in range(settings.learners)]
        begin = run.note("death", kind="the store's process")
        os.kill(run.store_process(), signal.SIGKILL)
        status = run.wait(300.0)
        seconds = time.monotonic() - begin
        left = [p.rank for p in learners if p is not None and run.lives(p)]
    finally:
        run.kill()
    said = [line for line in run.log.splitlines() if line.startswith("launch: ")]
    return {"seconds": seconds, "status": status, "left": left, "said": said}


def full_disk(directory: Path, settings: Settings, generator: random.Random) -> Any:
    """Fill the disk to which a learner saves, and make room after its death."""
    victim = generator.randrange(settings.learners)
    directory.mkdir(parents=True)
    for rank in range(settings.learners):
        (directory / f"disk{rank}").mkdir()
    with _disk(directory / f"disk{victim}") as disk:
        run = Run(directory, settings)
        try:
            return _fill(run, disk, victim)
        finally:
            run.kill()


def _fill(run: Run, disk: Path, victim: int) -> Any:
    run.until(run.all_step)
    first = run.latest(victim)
    assert first is not None
    run.until(lambda: _saves(run, first))
    run.note("stop", kind="a full disk", rank=victim, incarnation=0, stepped=True)
    _write_until_full(disk / "other")
    run.until(lambda: not run.lives(first))
    whole = _loads(disk / "checkpoint.pth")
    left = sorted(path.name for path in disk.iterdir())
    run.until(lambda: _replaced(run, first, "step"))
    again = run.latest(victim)
    assert again is not None
    (disk / "other").unlink()
    run.until(lambda: _saved_since(run, victim))
    status = run.end()
    run.records.read()
    errors = [text for p in run.records for _, (text,) in p.of("error")]
    return {
        "status": status,
        "whole": whole,
        "left": left,
        "errors": errors,
        "saves_again": _loads(disk / "checkpoint.pth"),
        "others": _steady(run, victim),
    }


def _saves(run: Run, process: Process) -> bool:
    run.records.read()
    return bool(process.of("saved"))


def _replaced(run: Run, first: Process, event: str) -> bool:
    now = run.latest(first.rank)
    assert now is not None
    return now.incarnation > first.incarnation and bool(now.of(event))


def _saved_since(run: Run, victim: int) -> bool:
    now = run.latest(victim)
    return now is not None and now.incarnation > 0 and bool(now.of("saved"))


def _steady(run: Run, victim: int) -> bool:
    """Return whether no other learner was started again."""
    return all(p.incarnation == 0 for p in run.records if p.rank != victim)


def _write_until_full(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                return


def _loads(path: Path) -> bool:
    """Return whether a checkpoint is there and whole."""
    state = torch.load(path, weights_only=True)
    return {"session", "optimizer"} <= set(state)


@contextmanager
def _disk(folder: Path) -> Iterator[Path]:
    """Make a small disk in memory, and remove it at the end."""
    size = f"size={DISK}"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise InputError(f"a small disk needs root: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
