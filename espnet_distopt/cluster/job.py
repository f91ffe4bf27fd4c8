"""Submits jobs of Slurm, asks for their state, and cancels them."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.errors import InputError

ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)


@dataclass(frozen=True)
class Record:
    """What Slurm says of a job, or of one task of an array.

    Attributes:
        id: The number of the job or of the array, as `12`.
        task: The number of the task in the array, or several as Slurm writes them
            ("3-8%2"); "" for a job that is no array.
        state: Slurm's word for the state, such as PENDING, RUNNING, COMPLETED.
        reason: Why it waits or has ended; "None" if Slurm gives no reason.
        nodes: The list of its nodes; "" before it has any.
        restarts: How often it was requeued.
        status: The exit status, or the number of a signal plus 128; 0 while it runs.
    """

    id: str
    task: str
    state: str
    reason: str
    nodes: str
    restarts: int
    status: int

    @property
    def ended(self) -> bool:
        """Whether it has ended, and does not start again."""
        return self.state in ENDED

    @property
    def tasks(self) -> list[str]:
        """The numbers of the tasks that it is of: of "1,4-6%2" 1, 4, 5 and 6."""
        numbers: list[int] = []
        for part in self.task.partition("%")[0].split(","):
            if found := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part):
                first, last, step = (int(each or 0) for each in found.groups())
                numbers += range(first, max(first, last) + 1, step or 1)
        return [str(number) for number in numbers]


def require_slurm() -> None:
    """Raise InputError if commands of Slurm are missing; it says what to do."""
    programs = ("sbatch", "scontrol", "scancel")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise InputError(
            f"{', '.join(missing)} not on PATH: jobs on a cluster need Slurm's "
            "commands (Debian: slurm-client); cmd_backend=local needs none"
        )


def submit(script: Path) -> str:
    """Submit a batch script; return the job's id.

    Raises:
        InputError: Slurm refuses the job; the message has its reason.
    """
    done = _slurm("sbatch", "--parsable", str(script))
    if done.returncode != 0:
        raise InputError(f"{script}: Slurm refused the job: {_reason(done.stderr)}")
    return done.stdout.strip().split(";")[0]


def query(job: str) -> list[Record] | None:
    """Return the record of a job, or those of the tasks of an array.

    It is empty if Slurm has forgotten the job, as it does some minutes after its end,
    and None if Slurm does not answer.
    """
    done = _slurm("scontrol", "show", "job", "--oneliner", job)
    if done.returncode != 0:
        return [] if "Invalid job id" in done.stderr else None
    return [parse(line) for line in done.stdout.splitlines() if line.strip()]


def parse(line: str) -> Record:
    """Return the record in a line of `scontrol show job --oneliner`."""

    def field(name: str) -> str:
        found = re.search(rf"(?:^| ){name}=(\S*)", line)
        return "" if found is None or found[1] == "(null)" else found[1]

    reason = re.search(r" Reason=(.*?) Dependency=", line)
    status, _, signal = field("ExitCode").partition(":")
    return Record(
        id=field("ArrayJobId") or field("JobId"),
        task=field("ArrayTaskId"),
        state=field("JobState"),
        reason=reason[1] if reason else "None",
        nodes=field("NodeList"),
        restarts=int(field("Restarts") or 0),
        status=int(status or 0) or (int(signal or 0) and 128 + int(signal)),
    )


def cancel(job: str) -> str:
    """Cancel a job; return Slurm's objection, or "" if there is none."""
    done = _slurm("scancel", job)
    return _reason(done.stderr) if done.returncode else ""


def _slurm(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Within a job, the new job would take over the variables of this one.
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or name == "SLURM_CONF"
    }
    return subprocess.run(
        [program, *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _reason(stderr: str) -> str:
    """Return what a command of Slurm says, joined to one line."""
    lines = (re.sub(r"^\w+: (error: )?", "", line) for line in stderr.splitlines())
    return (
        "; ".join(line.strip() for line in lines if line.strip()) or "no reason given"
    )
