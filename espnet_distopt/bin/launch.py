"""Start learners on this machine, and go on when one of them dies.

    python -m espnet_distopt.bin.launch --nproc 4 -m MODULE ARGUMENTS...
    python -m espnet_distopt.bin.launch --nproc 4 SCRIPT.py ARGUMENTS...
    python -m espnet_distopt.bin.launch --nproc 4 -- PROGRAM ARGUMENTS...

Each learner gets the variables that torchrun sets, and DISTOPT_INCARNATION, which says
how often it was started before. The rendezvous store is in a process of its own, so
that every learner is expendable. SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 go to all
learners, and so does SIGHUP (the terminal is gone), as SIGTERM. A learner that has not
ended 30 s after SIGTERM or SIGINT is killed; in a Slurm step Slurm has limits of its
own instead. On several machines, start it once on each; inside a Slurm step of one task
per node, Slurm says which node it is.

A learner has died if a signal has killed it, its machine is lost, or the others have
given it up. A program that ends by itself with a status other than 0, as after an
exception, has failed: the run ends, unless --restarts lets it try again.

The exit status is 0 if the learners that were left have ended well, 75 if they were
stopped and have saved their state, 130 after Ctrl-C, and else that of the learner that
failed first.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from espnet_distopt.distributed.slurm_step import tasks_per_node, this_node
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.launch.plan import make_plan, network_variables
from espnet_distopt.launch.program import resolve, split
from espnet_distopt.launch.slowdown import parse_slow, slowed
from espnet_distopt.launch.supervisor import Policy, Supervisor

STOP_SECONDS = 30.0
FLAGS = {"-h", "--help", "--label", "--share-gpu", "--share_gpu"}
OTHERS_GO_ON = {"auto": None, "continue": True, "end": False}


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own options."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="launch --nproc N [options] [--] PROGRAM ARGUMENTS...",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--nproc",
        "--nproc_per_node",  # torchrun's word for it
        "--nproc-per-node",
        required=True,
        help="learners on this machine (with --nnodes: on each); "
        "4,4,3 gives each node its own number",
    )
    parser.add_argument(
        "--restarts",
        default="0",
        help="how often each learner that dies or fails is started again (default: 0)",
    )
    parser.add_argument(
        "--join_seconds",
        "--join-seconds",
        type=float,
        default=1800.0,
        help="seconds after which a learner that was started again is killed (and "
        "started again) if it has neither joined the others nor asked one that trains "
        "or validates (default: 1800)",
    )
    parser.add_argument(
        "--on-death",
        "--on_death",
        choices=OTHERS_GO_ON,
        default="auto",
        help="what the others do when a learner dies (not when its program fails, "
        "which ends all): `continue`, `end` (as torchrun), "
        "or `auto` (default), which is `continue` as soon as the learners have said "
        "that their algorithm survives, and `end` otherwise",
    )
    parser.add_argument(
        "--label", action="store_true", help="write RANK: before each learner's lines"
    )
    parser.add_argument(
        "--slow",
        default="",
        metavar="RANK:FACTOR,...",
        help="stop these learners for a part of the time, so that they are so many "
        "times as slow: shows what a slow machine does to a training",
    )
    parser.add_argument(
        "--share-gpu",
        "--share_gpu",
        action="store_true",
        help="let all learners of this machine use its first GPU, to try things out: "
        "each seems to be alone on a machine (LOCAL_RANK is 0), also to NCCL, which "
        "goes by sockets then",
    )
    parser.add_argument("--nnodes", type=int, help="machines (default: 1)")
    parser.add_argument(
        "--node_rank", "--node-rank", type=int, help="this machine's number, from 0"
    )
    parser.add_argument(
        "--master", help="HOST:PORT of node 0, whose launcher keeps the store there"
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the learners, and end with the exit status of the run."""
    options, words = split(sys.argv[1:] if cmd is None else cmd, FLAGS)
    args = get_parser().parse_args(options)
    step = this_node(os.environ) if args.nnodes is None else None
    plan = make_plan(
        args.nproc, args.nnodes, args.node_rank, args.master, step, os.environ
    )
    plan = replace(plan, share_gpu=args.share_gpu)
    policy = _policy(args.restarts, args.on_death, args.join_seconds)
    slow = parse_slow(args.slow, sum(plan.counts))
    command = resolve(words)
    environment = os.environ | network_variables(plan, os.environ)
    supervisor = Supervisor(plan, command, policy, args.label, environment)
    with slowed(supervisor.learners, slow):
        status = supervisor.run()
    if status:
        raise SystemExit(status)


def _policy(restarts: str, on_death: str, join_seconds: float) -> Policy:
    if not re.fullmatch(r"\d{1,6}", restarts):
        raise InputError(f"--restarts {restarts}: expected a number from 0")
    if int(restarts) and on_death == "end":
        raise InputError(
            f"--restarts {restarts}: a learner that is started again needs the others, "
            "which --on-death end ends"
        )
    if not 0 < join_seconds < math.inf:
        raise InputError(f"--join_seconds {join_seconds:g}: expected more than 0")
    # Slurm gives a job that it ends a time of its own, which may be longer.
    stop_seconds = math.inf if tasks_per_node(os.environ) else STOP_SECONDS
    return Policy(int(restarts), OTHERS_GO_ON[on_death], join_seconds, stop_seconds)


if __name__ == "__main__":
    main()
