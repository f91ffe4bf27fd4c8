"""Finds in the log of a failed job which rank failed first, and its last lines."""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LAST_LINES = 15
# The launcher writes "3: text" for a line of rank 3, and reports the ranks that end
# badly in the order of their ends. srun reports tasks, which are the launchers of the
# nodes, or the only process of a job without a launcher.
_LABEL = re.compile(r" *(\d+): ?(.*)")
_REPORT = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (.+)")
_DEATH = re.compile(
    r"launch: learner (\d+) on (\S+) "
    r"(?:was )?((?:killed by \w+|ended with status \d+)(?: \(.*\))?): "
    r"((?:it is|the others) .*)"
)
_START = re.compile(r"slurm: job \S+ starts on ")


@dataclass(frozen=True)
class Failure:
    """Why a job failed.

    Attributes:
        rank: The rank that failed first; None if the job has only one, or if its
            launcher has not reported it.
        node: The node of that rank; "" if it is not known.
        how: What the launcher or srun says of its end; "" if it is not known.
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
    """Return the failure of the rank that failed first, by the lines of a log.

    If a signal ended the rank that the launcher reports first, it is this rank, which
    had no time to say anything. Else it is the rank whose traceback comes first. While
    it ends, other ranks notice that, and may end before it. A learner that was started
    again has not failed.
    """
    tails: dict[int | None, deque[str]] = {}
    deaths: list[tuple[int, str, str]] = []
    tasks: list[tuple[str, str]] = []
    traced: int | None = None
    for line in lines:
        line = line.rstrip("\n").split("\r")[-1]
        if _START.match(line):
            tails, deaths, tasks, traced = {}, [], [], None
        if report := _REPORT.match(line):
            tasks.append((report[1], report[2]))
            continue
        if death := _DEATH.match(line):
            if not death[4].startswith("it is started again"):
                deaths.append((int(death[1]), death[2], death[3]))
            elif traced == int(death[1]):
                traced = None
            continue
        rank, text = split_label(line)
        if rank is None and text.startswith(("slurm: job ", "srun: ", "launch: ")):
            continue
        if "slurmstepd" in text and "error: ***" in text:
            continue
        if traced is None and text.startswith("Traceback (most recent call last)"):
            traced = rank
        tails.setdefault(rank, deque(maxlen=LAST_LINES)).append(text)
    if not deaths:
        node, how = tasks[0] if tasks else ("", "")
        longest = tails.get(None) or max(tails.values(), key=len, default=())
        return Failure(None, node, how, list(tails.get(traced, longest)))
    rank, node, how = deaths[0]
    if how.startswith("ended") and traced is not None:
        rank = traced
        of_rank = ((place, end) for dead, place, end in deaths if dead == rank)
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
