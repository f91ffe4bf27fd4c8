"""Writes the text of a batch script, from which Slurm starts a job."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.cluster.settings import Settings
from espnet_distopt.errors import STOPPED

# The variables that a job needs of the environment in which it is submitted.
# --export=ALL would bring the rest, too, and the job would depend on who submitted it.
EXPORTED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHON",
    "PYTHONPATH",
    "LANG",
    "LC_ALL",
    "OMP_NUM_THREADS",
    "PYTHONIOENCODING",
)
EXPORTED_PREFIXES = ("GLOO_", "NCCL_", "TORCH_")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One submission.

    Attributes:
        name: The name that `squeue` shows.
        command: The program and its arguments. In an array, the word JOB in them and in
            the log's name stands for the task's number 1, 2, ...
        log: The file for all output, relative to `directory`.
        directory: The directory in which the command runs.
        tasks: The number of processes, if they do not fill the nodes of the settings; 0
            if they do.
        array: The number of tasks of an array; 0 for no array.
        array_limit: The number of tasks that may run at the same time; 0 for all.
        after: The ids of jobs that must have ended well before this one starts.
        restarts: How often a learner that has died is started again.
        python: The Python that runs the launcher of several learners.
    """

    name: str
    command: Sequence[str]
    log: Path
    directory: Path
    tasks: int = 0
    array: int = 0
    array_limit: int = 0
    after: Sequence[str] = ()
    restarts: int = 0
    python: str = "python3"


def batch_script(job: Job, settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the script, which depends on nothing but the arguments.

    The program gets SIGUSR1, which tells it to stop, some time before the time limit
    and when the job is preempted. If it then ends with status `STOPPED`, the script
    requeues the job, at most `settings.requeues` times. Every other status ends the
    job.

    Several processes are learners. Slurm starts one task on each node, the launcher,
    which starts the learners of the node and can start one again that has died. Of
    `environ` it takes the variables in `EXPORTED`.
    """
    keep = settings.no_kill
    srun = ["srun", "--export=ALL", f"--kill-on-bad-exit={int(not keep)}"]
    srun += ["--no-kill"] if keep else []
    # From 22.05 on, Slurm does not hand this option from the job to its steps.
    srun += [f"--cpus-per-task={_cpus(settings)}"]
    if settings.nodes * settings.tasks_per_node > 1:
        srun += _launcher(job, settings)
    head = "\n".join(
        f"#SBATCH {option}" for option in (*_options(job, settings), *settings.extra)
    )
    exports = "\n".join(
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(environ.items())
        if name in EXPORTED or name.startswith(EXPORTED_PREFIXES)
    )
    prologue = "\n".join(("set -e", *settings.prologue, "set +e"))
    return _TEXT.format(
        name=job.name,
        head=head,
        directory=shlex.quote(str(job.directory)),
        exports=exports + "\n" if exports else "",
        prologue=prologue + "\n" if settings.prologue else "",
        id="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
        if job.array
        else "$SLURM_JOB_ID",
        requeues=settings.requeues,
        srun=" ".join(srun),
        command=_command(job),
        stopped=STOPPED,
    )


def array_log(log: Path, task: int | str) -> Path:
    """Return the log of one task, in whose name the number replaces the word JOB."""
    return Path(_WORD_JOB.sub(str(task), str(log)))


_WORD_JOB = re.compile(r"(?<![A-Za-z0-9])JOB(?![A-Za-z0-9])")


def _cpus(settings: Settings) -> int:
    """Return the cores of the one task on each node."""
    return settings.cpus_per_task * settings.tasks_per_node


def _launcher(job: Job, settings: Settings) -> list[str]:
    each = settings.tasks_per_node
    total = job.tasks or settings.nodes * each
    counts = [min(each, total - first) for first in range(0, total, each)]
    nproc = str(each) if len(set(counts)) == 1 else ",".join(map(str, counts))
    command = [shlex.quote(job.python), "-m", "espnet_distopt.bin.launch"]
    options = ["--nproc", nproc, "--restarts", str(job.restarts), "--label", "--"]
    return ["\\\n   ", *command, *options]


def _options(job: Job, settings: Settings) -> list[str]:
    log = array_log(job.log, "%a") if job.array else job.log
    limit = f"%{job.array_limit}" if job.array_limit else ""
    asked = {
        "job-name": job.name,
        "chdir": shlex.quote(str(job.directory)),
        "output": shlex.quote(str(log)),
        "open-mode": "append",
        "export": "PATH",
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "time": settings.time,
        "nodes": settings.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": _cpus(settings),
        "gpus-per-node": settings.gpus_per_node or None,
        "mem-per-cpu": settings.mem_per_cpu,
        "constraint": settings.constraint and shlex.quote(settings.constraint),
        "array": f"1-{job.array}{limit}" if job.array else None,
        "dependency": ":".join(("afterok", *job.after)) if job.after else None,
        "kill-on-invalid-dep": "yes" if job.after else None,
        "signal": f"USR1@{settings.signal_seconds}",
    }
    options = [f"--{key}={value}" for key, value in asked.items() if value is not None]
    options += ["--no-kill"] if settings.no_kill else []
    return [*options, "--requeue" if settings.requeues else "--no-requeue"]


def _command(job: Job) -> str:
    """Return the command for the shell, with each option on a line of its own."""
    text = ""
    for word in job.command:
        parts = _WORD_JOB.split(word) if job.array else [word]
        quoted = [shlex.quote(part) if part else "" for part in parts]
        shown = '"$SLURM_ARRAY_TASK_ID"'.join(quoted) or "''"
        text += (" \\\n    " if not text or word.startswith("--") else " ") + shown
    return text


_TEXT = """\
#!/usr/bin/env bash
# Job {name}, written by espnet_distopt.bin.slurm.
{head}

cd {directory} || exit 1
{exports}{prologue}set -u
# An empty list of GPUs is not the same as none.
[ -n "${{CUDA_VISIBLE_DEVICES:-}}" ] || unset CUDA_VISIBLE_DEVICES

job={id}
restart=${{SLURM_RESTART_COUNT:-0}}
requeues={requeues}
say() {{ echo "slurm: job $job $*"; }}
if [ "$restart" -gt "$requeues" ]; then
    say "was requeued $restart times, at most $requeues are allowed: not started again"
    exit {stopped}
elif [ "$restart" -gt 0 ]; then
    say "starts on $SLURM_JOB_NODELIST: restart $restart of at most $requeues"
else
    say "starts on $SLURM_JOB_NODELIST"
fi

# In the background, since bash runs a trap only after its foreground command.
{srun}{command} &
trap 'interrupted=1' TERM
trap 'interrupted=1; kill -USR1 "$!"' USR1
interrupted=1
while [ "$interrupted" = 1 ]; do
    interrupted=0
    wait "$!"
    status=$?
done

# {stopped}: told to stop, and its state is saved. 138: told before it could listen.
if [ "$status" != {stopped} ] && [ "$status" != 138 ]; then
    say "ended with status $status"
    exit "$status"
fi
# The controller may be too busy to answer, or be started again.
ask() {{
    local pause
    for pause in 0 10 30; do
        sleep "$pause"
        scontrol "$@" && return
    done
    return 1
}}

# A job that was cancelled must stay so; one that Slurm has requeued needs no help. An
# unknown state is none of these: Slurm ends a cancelled job after KillWait, 30 s.
state=$(ask show job -o "$job")
if [ -n "$state" ] && [[ $state != *" JobState=RUNNING "* ]]; then
    say "was stopped by Slurm (status $status)"
elif [ "$restart" -ge "$requeues" ]; then
    say "stopped (status $status) after all $requeues requeues: submit it to go on"
else
    say "stopped (status $status): requeue $((restart + 1)) of at most $requeues"
    trap '' TERM
    ask requeue "$job" || say "could not be requeued: submit it to go on"
fi
exit {stopped}
"""
