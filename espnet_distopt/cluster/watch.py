"""Waits for a job, while one line shows its state, and explains a failure."""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from espnet_distopt.cluster.failure import find_failure, last_line, written_status
from espnet_distopt.cluster.job import Record, cancel, query
from espnet_distopt.cluster.script import array_log
from espnet_distopt.errors import STOPPED

# Slurm is asked often at first, and later once in so many seconds.
POLL_SECONDS = 5.0
# How long this command waits for a cancelled job, which saves its state.
CANCEL_SECONDS = 8.0
# Who submits a job blocks these signals until it is watched, and can be cancelled.
STOPS = (signal.SIGINT, signal.SIGTERM)
# A file gets a new detail of the same state once in so many seconds.
QUIET_SECONDS = 30.0


class StatusLine:
    """Shows a state in one line of a terminal, or else in a new line for each change.

    `clock` returns the time in seconds, from any origin.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float]) -> None:
        self.out, self.clock = out, clock
        self.state = self.detail = ""
        self.shown = float("-inf")
        self.live = out.isatty()

    def show(self, state: str, detail: str) -> None:
        """Show a state, and a detail that may change often; a file gets fewer lines."""
        text = f"{state}: {detail}" if detail else state
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self.out.write(f"\r\x1b[K{_printable(text)[:width]}")
            self.out.flush()
            return
        quiet = self.clock() - self.shown < QUIET_SECONDS
        if state == self.state and (quiet or detail == self.detail):
            return
        stamp = time.strftime("%H:%M:%S")
        print(f"{stamp} {_printable(text)}", file=self.out, flush=True)
        self.state, self.detail, self.shown = state, detail, self.clock()

    def end(self) -> None:
        """Leave the line as it is, so that what follows begins a new one."""
        if self.live:
            self.out.write("\n")
            self.out.flush()


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


@dataclass
class JobWatch:
    """One job, or one array, that is waited for.

    Attributes:
        job: The job's id.
        name: The job's name.
        log: The job's log; in an array, the word JOB stands for the task's number.
        array: The number of tasks; 0 for no array.
        ask: Asks Slurm for the job's records; tests replace it.
        sleep: Waits for seconds; tests replace it.
        clock: Returns the time in seconds, from any origin; tests replace it.
        records: The last record of each task, or of the job under the name "".
    """

    job: str
    name: str
    log: Path
    array: int = 0
    ask: Callable[[str], list[Record] | None] = query
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    records: dict[str, Record] = field(default_factory=dict)

    def until_end(self, out: TextIO = sys.stdout, errors: TextIO = sys.stderr) -> int:
        """Wait until the job has ended, and return its exit status.

        A line in `out` shows the job's state; `errors` gets the reason of a failure.
        Ctrl-C cancels the job.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C, and the job was cancelled.
        """
        line = StatusLine(out, self.clock)
        began = self.clock()
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            while not self._ended():
                line.show(*self._status())
                waited = self.clock() - began
                self.sleep(min(POLL_SECONDS, 0.5 + waited / 20))
        except KeyboardInterrupt:
            # A second one would end scancel.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            line.end()
            objection = cancel(self.job)
            print(
                f"job {self.job} ({self.name}) "
                + (
                    f"could not be cancelled: {objection}" if objection else "cancelled"
                ),
                file=errors,
            )
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            self._wait_for_cancelled()
            raise
        line.show(*self._status())
        line.end()
        return self._conclude(errors)

    def _ended(self) -> bool:
        found = self.ask(self.job)
        if found is None:
            return False
        for record in found:
            for task in record.tasks if self.array else [""]:
                self.records[task] = replace(record, task=task)
        return all(record.ended for record in found)

    def _wait_for_cancelled(self) -> None:
        deadline = self.clock() + CANCEL_SECONDS
        while self.clock() < deadline and not self._ended():
            self.sleep(0.5)

    def _status(self) -> tuple[str, str]:
        """Return the job's state in words, and the last line of its log."""
        head = f"{self.name} (job {self.job}): "
        if self.array:
            states = [record.state for record in self.records.values()]
            counts = {s: states.count(s) for s in dict.fromkeys(states)}
            waiting = self.array - len(states)
            parts = [f"{count} {state.lower()}" for state, count in counts.items()]
            parts += [f"{waiting} pending"] if waiting else []
            return head + ", ".join(parts) + f" of {self.array}", ""
        record = self.records.get("")
        if record is None:
            return head + "submitted", ""
        text = head + record.state
        if record.reason not in ("None", ""):
            text += f" ({record.reason})"
        if record.nodes:
            text += f" on {record.nodes}"
        if record.restarts:
            requeued = record.state == "PENDING"
            text += f", requeued: restart {record.restarts}" if requeued else ""
            text += "" if requeued else f", restart {record.restarts}"
        return text, last_line(self.log)

    def _conclude(self, errors: TextIO) -> int:
        tasks = [str(n) for n in range(1, self.array + 1)] if self.array else [""]
        ends = [self._end(task) for task in tasks]
        bad = [end for end in ends if end.state != "COMPLETED"]
        if not bad:
            return 0
        record = min(bad, key=lambda end: end.status == STOPPED)
        what = f"{self.name} (job {self.job})"
        what = f"task {record.task} of {what}" if record.task else what
        what += f" and {len(bad) - 1} others" if len(bad) > 1 else ""
        if record.state == "FAILED" and record.status == STOPPED:
            log = self._log(record.task)
            print(f"{what} was stopped, after its last requeue: {log}", file=errors)
            return STOPPED
        _explain(record, what, self._log(record.task), errors)
        return record.status or 1

    def _end(self, task: str) -> Record:
        """Return a task's last record, or one made from its log if Slurm forgot it."""
        record = self.records.get(task)
        if record is not None and record.ended:
            return record
        status = written_status(self._log(task))
        if status is None:
            return Record(self.job, task, "LOST", "Slurm has forgotten it", "", 0, 0)
        state = "FAILED" if status else "COMPLETED"
        return Record(self.job, task, state, "None", "", 0, status)

    def _log(self, task: str) -> Path:
        return array_log(self.log, task) if task else self.log


def _explain(record: Record, what: str, log: Path, out: TextIO) -> None:
    text = f"error: {what}: {record.state.lower()}"
    if record.reason not in ("None", "", "NonZeroExitCode"):
        text += f" ({record.reason})"
    if record.status:
        text += f", exit status {record.status}"
    if record.state != "CANCELLED":
        failure = find_failure(log)
        if failure.rank is not None:
            where = f"rank {failure.rank} on {failure.node}"
            text += f"; {where} failed first: {failure.how}"
        elif failure.how:
            text += f" on {failure.node}: {failure.how}"
        if failure.lines:
            whose = "the log" if failure.rank is None else f"rank {failure.rank}"
            print(f"last lines of {whose}:", file=out)
            for line in failure.lines:
                print(f"    {line}", file=out)
    print(text, file=out)
    print(f"full log: {log}", file=out)
