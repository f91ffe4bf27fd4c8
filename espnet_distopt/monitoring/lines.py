"""The lines of `distopt/learner{rank}.jsonl`, each of which is a JSON object.

Lines are only ever appended, and a restarted learner goes on with the same file. A line
is written by one `write`, so only a kill can cut it off. Readers leave such lines out.
"""

import json
import math
import os
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from espnet_distopt.errors import InputError

Event = Literal[
    "begin", "resume", "step", "validate", "epoch", "members", "stop", "end"
]


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one learner says about itself at one moment.

    The figures from `seconds` to `cpu` are those since the last line, without the time
    of validation. One that is unknown is None here and missing in the file. One that is
    not finite is null in the file.

    Attributes:
        time: Unix time.
        event: What happens. `begin` and `resume`: the process starts. `step`: it
            trains; this is written every few seconds. `validate`: the epoch's training
            is over. `epoch`: its validation is over too. `members`: a learner has died
            or has joined. `stop`: it stops within an epoch, on request. `end`: the
            process ends.
        slurm_restarts: How often the Slurm job was restarted.
        step: The batches that this learner has trained on in this epoch. If learners
            take their batches from a work queue, it is the mean over all.
        steps: The number of steps of the epoch, if it is known.
        epoch_samples: The utterances that this learner has trained on in this epoch.
        left: The estimated number of seconds to the end of the training.
        seconds, batches, samples: The time of training, its batches and utterances.
        loss: The mean training loss.
        comm_time, wait_time: The seconds in which the learner was in collectives, and
            in which it waited for gossip. ESPnet's own training does not measure them.
        bytes: The bytes sent. Those of gossip at the end of an epoch are in the first
            line of the next one.
        exchanges: The gossip exchanges.
        staleness, staleness_max: The mean and the largest one of what was received, in
            steps.
        cpu: The mean number of cores in use.
        gpu: The share of the time in which the GPU is busy, at this moment.
        gpu_memory: The bytes of GPU memory that the process holds.
        epoch_loss, valid_loss, consensus_distance: Those of an epoch, at its end.
        members: When they have changed, the ranks of the living learners, with commas.
        signal: At a stop, the name of the signal; None if another learner got it.
        saved: At a stop, whether this learner's state is saved. If not, the epoch will
            be repeated.
        error: At the end, the reason if the training has failed.
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
    comm_time: float | None = None
    wait_time: float | None = None
    bytes: float | None = None
    exchanges: float | None = None
    staleness: float | None = None
    staleness_max: float | None = None
    cpu: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None
    epoch_loss: float | None = None
    valid_loss: float | None = None
    consensus_distance: float | None = None
    members: str | None = None
    signal: str | None = None
    saved: bool | None = None
    error: str | None = None

    @property
    def computing(self) -> float | None:
        """The seconds of training since the last line without those of waiting.

        None if others were waited for, and nobody measured how long.
        """
        if self.comm_time is None and self.learners > 1:
            return None
        return self.seconds - (self.comm_time or 0.0) - (self.wait_time or 0.0)


def append(line: Line, path: Path) -> None:
    """Add `line` to a learner's file, which is made if it is missing.

    Raises:
        OSError: The file cannot be written.
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
            text = "\n" + text  # A kill has cut the last line off.
        os.write(file, text.encode())
    finally:
        os.close(file)


def plain(value: Any) -> Any:
    """Return `value` for JSON: a float has six digits, and is None if not finite."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if abs(value) >= 1000 else float(f"{value:.6g}")


def read(path: Path, recent: int | None = None) -> list[Line]:
    """Return the lines of a learner's file; of steps, those of the `recent` last lines.

    Raises:
        InputError: The file cannot be read, or holds something else.
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
    """Return the line in `row`, or None if it was cut off."""
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
