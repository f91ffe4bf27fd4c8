"""Learners' files, written by hand."""

from pathlib import Path
from typing import Any

from espnet_distopt.monitoring.lines import Line, append

START = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def line(event: str, at: float, **more: Any) -> Line:
    """Return a line of learner 0 of 2, `at` seconds after START."""
    known: dict[str, Any] = {
        "rank": 0,
        "learners": 2,
        "algorithm": "adpsgd",
        "host": "node-1",
        "pid": 100,
        "epoch": 1,
        "max_epoch": 3,
        "step": 0,
        "steps": 100,
    }
    return Line(time=START + at, event=event, **{**known, **more})  # type: ignore[arg-type]


def step(number: int, at: float, **more: Any) -> Line:
    """Return a line after 15 seconds with 30 batches of 4 utterances."""
    known: dict[str, Any] = {
        "step": number,
        "epoch_samples": 4 * number,
        "seconds": 15.0,
        "batches": 30,
        "samples": 120,
        "loss": 2.5,
        "comm_time": 0.3,
        "wait_time": 0.75,
        "bytes": 4e6,
        "staleness": 1.25,
        "staleness_max": 3.0,
        "cpu": 0.98,
        "left": 600.0,
    }
    return line("step", at, **{**known, **more})


def write(experiment: Path, *learners: list[Line]) -> Path:
    """Append the lines of each learner to its file."""
    for rank, lines in enumerate(learners):
        for each in lines:
            append(each, experiment / "distopt" / f"learner{rank}.jsonl")
    return experiment


def pair(*lines: Line) -> tuple[list[Line], list[Line]]:
    """Return the lines for learner 0, and the same of learner 1 on another host."""
    from dataclasses import replace

    others = [replace(each, rank=1, host="node-2", pid=101) for each in lines]
    return list(lines), others
