"""Finds in the log of a failed job which rank failed first, and its last lines."""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LAST_LINES = 15
# srun writes "3: text" for a line of rank 3, and reports the ranks that end badly in
# the order of their ends.
_LABEL = re.compile(r" *(\d+): ?(.*)")
_REPORT = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (.+)")
_START = re.compile(r"slurm: job \S+ starts on ")


@dataclass(frozen=True)
class Failure:
    """Why a job failed.

    Attributes:
        rank: The rank that failed first; None if the job has only one, or if Slurm has
            not reported it.
        node: The node of that rank; "" if it is not known.
        how: What srun says of the rank's end, such as "Killed"; "" if it is not known.
        lines: The last lines of the rank, or of the log, without labels.
    """

    rank: int | None
    node: str
    how: str
    lines: list[str]


def find_failure(log: Path) -> Failure:
    """Return the first failure in a log since the job's last start."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return first_failure(lines)
    except OSError:
        return Failure(None, "", "", [])


def first_failure(lines: Iterable[str]) -> Failure:
    """Return the failure of the rank that failed first.

    If a signal ended the rank that srun reports first, it is this rank, which had no
    time to say anything. Else it is the rank whose traceback comes first. While it
    ends, other ranks notice that, and may end before it.

    Args:
        lines: The lines of the log.
    """
    tails: dict[int | None, deque[str]] = {}
    reports: list[tuple[list[int], str, str]] = []
    traced: int | None = None
    for line in lines:
        line = line.rstrip("\n").split("\r")[-1]
        if _START.match(line):
            tails, reports, traced = {}, [], None
        if report := _REPORT.match(line):
            reports.append((_numbers(report[2]), report[1], report[3]))
            continue
        rank, text = split_label(line)
        if rank is None and text.startswith(("slurm: job ", "srun: ")):
            continue
        if "slurmstepd" in text and "error: ***" in text:
            continue
        if traced is None and text.startswith("Traceback (most recent call last)"):
            traced = rank
        tails.setdefault(rank, deque(maxlen=LAST_LINES)).append(text)
    if not reports:
        return Failure(None, "", "", list(tails.get(traced, _longest(tails))))
    ranks, node, how = reports[0]
    if set(tails) <= {None} and all(named == [0] for named, _, _ in reports):
        return Failure(None, node, how, list(tails.get(None, ())))
    rank = ranks[0]
    if how.startswith("Exited") and traced is not None:
        rank = traced
        of_rank = ((place, end) for named, place, end in reports if rank in named)
        node, how = next(of_rank, ("a node", "traceback"))
    return Failure(rank, node, how, list(tails.get(rank, ())))


def split_label(line: str) -> tuple[int | None, str]:
    """Return the rank that wrote a line, or None if it has no label, and its text.

    >>> split_label("3: epoch 1")
    (3, 'epoch 1')
    """
    found = _LABEL.fullmatch(line)
    return (int(found[1]), found[2]) if found else (None, line)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, without its label."""
    lines = [part for part in re.split(r"[\r\n]+", _end_of(log)) if part.strip()]
    return split_label(lines[-1])[1].strip() if lines else ""


def written_status(log: Path) -> int | None:
    """Return the exit status that the batch script has written into its log, if any."""
    found = re.search(r"^slurm: job \S+ ended with status (\d+)$", _end_of(log), re.M)
    return int(found[1]) if found else None


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _longest(tails: dict[int | None, deque[str]]) -> Iterable[str]:
    return tails.get(None) or max(tails.values(), key=len, default=())


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as "0-2,5"."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += list(range(int(first), int(last or first) + 1))
    return numbers
