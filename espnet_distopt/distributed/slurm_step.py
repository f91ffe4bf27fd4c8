"""Inside a Slurm job: the rank of each task, and the address where learners meet.

Slurm numbers the tasks of a step in variables of its own; `torch.distributed` reads
RANK, WORLD_SIZE and others. This module sets the latter from the former. It takes
nothing from the names of hosts, which may contain hyphens and may not resolve, and it
needs no shared file: rank 0 is on the node where the batch script runs, and Slurm gives
the address of that node to every task.
"""

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from espnet_distopt.errors import InputError

# The ports lie below those that Linux gives to clients (32768 and up).
FIRST_PORT, PORTS = 20000, 12000
PORTS_OF_A_JOB = 16
"""Consecutive steps and restarts of one job use so many different ports."""


@dataclass(frozen=True)
class Node:
    """The place of one node in a Slurm step that has one task on each node.

    Attributes:
        nodes: the number of nodes of the step.
        number: the number of this node, from 0.
        address: the address of node 0.
        port: a port that no other step or restart of the job uses.
    """

    nodes: int
    number: int
    address: str
    port: int


def this_node(environ: Mapping[str, str]) -> Node | None:
    """Return this node's place in a Slurm step over several nodes; None outside one.

    Raises:
        InputError: a node has several tasks, or node 0 is not this machine although it
            is task 0.
    """
    counts = tasks_per_node(environ)
    variables = from_slurm(environ)
    if not variables:
        return None
    if max(counts) > 1:
        raise InputError(
            "the launcher starts all learners of a node: start one launcher on each "
            "(srun --ntasks-per-node=1)"
        )
    address, number = variables["MASTER_ADDR"], int(variables["RANK"])
    if number == 0:
        _check_is_here(address)
    return Node(len(counts), number, address, int(variables["MASTER_PORT"]))


def apply(cmd: Sequence[str] | None = None) -> None:
    """Set the variables of `torch.distributed` in a Slurm step of several tasks.

    Call it before anything reads them. It changes nothing outside of such a step, or if
    a launcher has set the variables already. Nor does it with ESPnet's option
    `--dist_launcher`: ESPnet then reads Slurm's variables itself, with one task for
    each node.

    Args:
        cmd: the command's arguments; `sys.argv` if None.

    Raises:
        InputError: rank 0 is not on the node from which the step was started, as
            happens with a bare `srun` on a login node.
    """
    arguments = sys.argv[1:] if cmd is None else cmd
    if any(each.partition("=")[0] == "--dist_launcher" for each in arguments):
        return
    variables = from_slurm(os.environ)
    if variables.get("RANK") == "0":
        _check_is_here(variables["MASTER_ADDR"])
    os.environ.update(variables)


def from_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

    The result is empty outside of a step of several tasks, or if RANK is set already. A
    MASTER_ADDR or MASTER_PORT that is set already stays as it is.

    Raises:
        InputError: Slurm's variables contradict each other, or one is missing.
    """
    counts = tasks_per_node(environ)
    if "RANK" in environ or sum(counts) < 2:
        return {}
    try:
        node = int(environ["SLURM_NODEID"])
        return {
            "RANK": environ["SLURM_PROCID"],
            "WORLD_SIZE": str(sum(counts)),
            "LOCAL_RANK": environ["SLURM_LOCALID"],
            "LOCAL_WORLD_SIZE": str(counts[node]),
            "MASTER_ADDR": environ.get("MASTER_ADDR")
            or environ["SLURM_LAUNCH_NODE_IPADDR"],
            "MASTER_PORT": environ.get("MASTER_PORT") or str(_port(environ)),
        }
    except KeyError as error:
        raise InputError(
            f"this is a Slurm step of {sum(counts)} tasks, but {error.args[0]} is not "
            "set: start it by srun"
        ) from None
    except (ValueError, IndexError):
        raise InputError(
            f"SLURM_NODEID={environ['SLURM_NODEID']} does not fit "
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']}"
        ) from None


def tasks_per_node(environ: Mapping[str, str]) -> list[int]:
    """Return the number of tasks on each node of this Slurm step; empty outside one.

    Example:
        >>> step = {"SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}
        >>> tasks_per_node(step)
        [4, 4, 3]
    """
    if "SLURM_PROCID" not in environ:
        return []
    counts = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _port(environ: Mapping[str, str]) -> int:
    """Return a port that depends on the job, its step and its number of restarts.

    Jobs with consecutive numbers get different ports, and so does a job's restart.
    """
    job = int(environ["SLURM_JOB_ID"])
    start = int(environ.get("SLURM_RESTART_COUNT") or 0)
    step = environ.get("SLURM_STEP_ID", "0")
    start += int(step) if step.isdecimal() else 0
    return FIRST_PORT + (PORTS_OF_A_JOB * job + start % PORTS_OF_A_JOB) % PORTS


def _check_is_here(address: str) -> None:
    """Raise InputError if an address, or a host name, is not one of this machine."""
    with suppress(OSError):
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in found:
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
                return
    raise InputError(
        f"rank 0 is not on {address}, where srun was started: "
        "submit a batch job, or set MASTER_ADDR to the address of the first node"
    )
