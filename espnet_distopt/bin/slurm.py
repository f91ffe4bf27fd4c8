"""Run a command as a Slurm job, and wait for it.

What the job asks for is in the settings file (conf/slurm.yaml). The batch script is
kept beside the log, as LOG with the ending .sbatch. Ctrl-C cancels the job.
"""

import argparse
import math
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from espnet_distopt.cluster.job import require_slurm, submit
from espnet_distopt.cluster.script import Job, array_log, batch_script
from espnet_distopt.cluster.settings import STAGES, Settings, read_settings
from espnet_distopt.cluster.watch import STOPS, JobWatch
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write, whole_file


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="name of the job")
    parser.add_argument("--log", type=Path, required=True, help="where its output goes")
    parser.add_argument(
        "--stage", choices=STAGES, default="other", help="whose settings"
    )
    parser.add_argument("--settings", type=Path, help="YAML; default: ask for nothing")
    parser.add_argument("--nodes", type=int, help="machines, over the settings'")
    parser.add_argument("--tasks_per_node", type=int, help="over the settings'")
    parser.add_argument("--cpus_per_task", type=int, help="over the settings'")
    parser.add_argument(
        "--tasks",
        type=int,
        help="processes in all: on as many machines as tasks_per_node asks for, in the "
        "place of --nodes",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="of several processes, how often one that dies is started again, if the "
        "others survive (default: 0)",
    )
    parser.add_argument(
        "--gpus_per_task",
        type=int,
        default=0,
        help="asks for the GPUs, if the settings do not (default: 0)",
    )
    parser.add_argument(
        "--array",
        default="",
        help="N tasks, or N%%LIMIT: the word JOB in the command and in the log's name "
        "stands for the task's number, from 1",
    )
    parser.add_argument(
        "--after", default="", help="JOBID[,JOBID...]: start if these have ended well"
    )
    parser.add_argument(
        "--nowait", action="store_true", help="submit, print the job's id and end"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print the batch script and end"
    )
    parser.add_argument("command", nargs="+", help="after `--`: program and arguments")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Submit the job, wait for it, and end with its exit status."""
    args = get_parser().parse_args(cmd)
    settings = _settings(args)
    job = _job(args, settings)
    script = batch_script(job, settings, os.environ)
    if args.dry_run:
        sys.stdout.write(script)
        return
    require_slurm()
    path = args.log.with_suffix(".sbatch")
    with explain_failed_write(path):
        args.log.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as new:
            new.write_text(script, encoding="utf-8")
            new.chmod(0o755)
        for log in _logs(job):
            _keep_earlier(log)
    if args.nowait:
        print(submit(path))
        return
    # A script that ends sends SIGTERM, which cancels the job as Ctrl-C does. While
    # sbatch runs, there may be a job whose number is not known yet.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    number = submit(path)
    status = JobWatch(number, job.name, job.log, job.array).until_end()
    if status:
        raise SystemExit(status)


def _job(args: argparse.Namespace, settings: Settings) -> Job:
    if not re.fullmatch(r"[\w.+-]+", args.name):
        raise InputError(f"--name {args.name!r}: expected letters, digits and ._+-")
    if re.search(r"[%\\\n]", str(args.log)):
        raise InputError(f"--log {args.log}: % and \\ mean something to Slurm")
    if args.log.is_dir():
        raise InputError(f"--log {args.log}: a directory, expected the name of a file")
    if args.restarts < 0:
        raise InputError(f"--restarts {args.restarts}: expected at least 0")
    array, limit = 0, 0
    if args.array:
        found = re.fullmatch(r"([1-9]\d*)(?:%([1-9]\d*))?", args.array)
        if found is None:
            raise InputError(f"--array {args.array}: expected N or N%LIMIT, from 1")
        array, limit = int(found[1]), int(found[2] or 0)
        if array_log(args.log, 1) == args.log:
            raise InputError(f"--log {args.log}: an array needs the word JOB in it")
    after = [part for part in args.after.split(",") if part]
    if not all(part.isdecimal() for part in after):
        raise InputError(f"--after {args.after}: expected job ids with commas between")
    return Job(
        name=args.name,
        command=args.command,
        log=args.log,
        directory=Path.cwd(),
        tasks=0 if args.tasks == _filled(settings) else args.tasks or 0,
        array=array,
        array_limit=limit,
        after=after,
        restarts=args.restarts,
        python=sys.executable,
    )


def _settings(args: argparse.Namespace) -> Settings:
    settings = read_settings(args.settings, args.stage) if args.settings else Settings()
    for name in ("nodes", "tasks_per_node", "cpus_per_task", "tasks"):
        value = getattr(args, name)
        if value is None:
            continue
        if value < 1:
            raise InputError(f"--{name} {value}: expected at least 1")
        if name != "tasks":
            settings = replace(settings, **{name: value})
    if args.tasks:
        if args.nodes:
            raise InputError(
                f"--nodes {args.nodes}: the machines follow from --tasks and "
                "--tasks_per_node: leave out --nodes or --tasks"
            )
        each = min(args.tasks, settings.tasks_per_node)
        nodes = math.ceil(args.tasks / each)
        settings = replace(settings, nodes=nodes, tasks_per_node=each)
    return _with_gpus(settings, args.gpus_per_task)


def _with_gpus(settings: Settings, each: int) -> Settings:
    """Return settings that ask for `each` GPUs for every task of a node."""
    needed = each * settings.tasks_per_node
    if any(option.startswith(("--gres", "--gpus")) for option in settings.extra):
        return settings
    if 0 < settings.gpus_per_node < needed:
        raise InputError(
            f"gpus_per_node is {settings.gpus_per_node}, but {settings.tasks_per_node} "
            f"tasks on a node need {needed}: set tasks_per_node to what a node has"
        )
    return replace(settings, gpus_per_node=settings.gpus_per_node or needed)


def _filled(settings: Settings) -> int:
    return settings.nodes * settings.tasks_per_node


def _logs(job: Job) -> list[Path]:
    if not job.array:
        return [job.log]
    return [array_log(job.log, task) for task in range(1, job.array + 1)]


def _keep_earlier(log: Path) -> None:
    """Rename an earlier log: train.log to train.1.log, or to the next free number."""
    number = 1
    while (kept := log.with_suffix(f".{number}{log.suffix}")).exists():
        number += 1
    if log.exists():
        os.replace(log, kept)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
