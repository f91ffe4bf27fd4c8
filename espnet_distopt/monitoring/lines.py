"""The lines of `distopt/learner{rank}.jsonl`: one JSON object each, only ever appended.

A line is written by one `write`, so only a kill can cut one off; its readers leave it
out. After a restart the same file goes on.
"""

import json
import math
import os
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from espnet_distopt.errors import InputError

Event = Literal["begin", "resume", "step", "validate", "epoch", "stop", "end"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one learner says of itself at one moment.

    "Since the last line" leaves validation out. A figure that is unknown is None, and
    not in the file; one that is not finite is null there.

    Attributes:
        time: Unix time.
        event: begin, resume: of the process; step: within an epoch, every few seconds;
            validate: the epoch's training is over; epoch: its validation is, too;
            stop: on request, within an epoch; end: of the process.
        rank: of the learner. learners: how many there are.
        host, pid: where it runs.
        slurm_job, slurm_restarts: its job, and how often that was restarted.
        step: batches trained on in this epoch; of those that take them from a work
            queue, by all learners, on average. steps: the epoch's length, if known.
        epoch_samples: utterances trained on in this epoch, by this learner.
        left: seconds to the end of the training, as far as one can know.
        seconds, batches, samples: of training since the last line.
        loss: mean since the last line.
        comm_time, wait_time: seconds of training spent in collectives, and in waits
            for gossip, since the last line.
        bytes: sent since the last line, gossip's in the first line of the next epoch.
        exchanges: of gossip, since the last line.
        staleness, staleness_max: of what was received since the last line, in steps.
        cpu: cores that the process used since the last line, on average.
        gpu: share of the time in which the GPU was busy, at this moment.
        gpu_memory: bytes that the process holds on it.
        epoch_loss, valid_loss, consensus_distance: at an epoch's end.
        signal: what asked for the stop, if it was not another learner.
        saved: at a stop: this learner's state; without it the epoch is repeated.
        error: at the end: why the process ends before the training does.
    """

    time: float
    event: Event
    rank: int
    learners: int
    algorithm: str
    host: str
    pid: int
    slurm_job: str | None = None
    slurm_restarts: int | None = None
    epoch: int
    max_epoch: int
    step: int
    steps: int | None = None
    epoch_samples: int = 0
    left: float | None = None
    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    loss: float | None = None
    comm_time: float = 0.0
    wait_time: float = 0.0
    bytes: float = 0.0
    exchanges: float = 0.0
    staleness: float | None = None
    staleness_max: float | None = None
    cpu: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None
    epoch_loss: float | None = None
    valid_loss: float | None = None
    consensus_distance: float | None = None
    signal: str | None = None
    saved: bool | None = None
    error: str | None = None


def append(line: Line, path: Path) -> None:
    """Add `line` to a learner's file, which is made if it is missing.

    Raises:
        OSError: the file cannot be written.
    """
    content: dict[str, Any] = {
        name: plain(value) for name, value in asdict(line).items() if value is not None
    }
    if line.seconds > 0:
        content["samples_per_s"] = plain(line.samples / line.seconds)
        content["steps_per_s"] = plain(line.batches / line.seconds)
    text = json.dumps(content, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            text = "\n" + text  # a kill has cut the last line off
        os.write(file, text.encode())
    finally:
        os.close(file)


def plain(value: Any) -> Any:
    """Return `value` as JSON has it: six digits, and nothing that is not finite."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if abs(value) >= 1000 else float(f"{value:.6g}")


def read(path: Path, recent: int | None = None) -> list[Line]:
    """Return the lines of a learner's file, in their order.

    Args:
        path: the file.
        recent: take the steps among this many last lines only; None: all.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    try:
        rows = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    first = 0 if recent is None else len(rows) - recent
    lines = []
    for number, row in enumerate(rows):
        row = row.strip(b"\0 \r")
        if not row or (number < first and b'"event": "step"' in row):
            continue
        line = _parse(row, f"{path}:{number + 1}")
        if line is not None:
            lines.append(line)
    return lines


def _parse(row: bytes, where: str) -> Line | None:
    """Return the line, or None if it was cut off."""
    try:
        content = json.loads(row)
    except ValueError:
        if row.startswith(b"{") and not row.endswith(b"}"):
            return None
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{where}: not a line of a learner: expected a JSON object")
    known: dict[str, Any] = {}
    for field in fields(Line):
        value = content.get(field.name)
        if field.default is not MISSING:
            if field.name not in content:
                continue
            if value is None and _fits(math.nan, field.type):
                value = math.nan
        if not _fits(value, field.type):
            raise InputError(
                f"{where}: not a line of a learner: {field.name} is {value!r}"
            )
        known[field.name] = value
    return Line(**known)


def _fits(value: Any, kind: Any) -> bool:
    if kind == Event:
        return value in get_args(Event)
    if isinstance(value, bool):
        return bool in get_args(kind)
    whole = isinstance(value, int)
    return isinstance(value, kind) or (whole and isinstance(0.0, kind))
