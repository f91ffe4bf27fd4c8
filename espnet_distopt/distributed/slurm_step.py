"""Inside a Slurm job: who is which learner, and where they meet.

Slurm numbers the tasks of a step; `torch.distributed` wants its own variables. Nothing
is taken from the names of hosts, which may hold hyphens and may not resolve, and no
shared file is needed: rank 0 is on the node where the batch script runs, whose address
Slurm gives to every task.
"""

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence

from espnet_distopt.errors import InputError

# Below the ports from which Linux serves its clients (32768 and up).
FIRST_PORT, PORTS = 20000, 12000
PORTS_OF_A_JOB = 16


def apply(cmd: Sequence[str] | None = None) -> None:
    """Set the variables of `torch.distributed` in a step of several tasks.

    Call it before anything reads them. Elsewhere, where a launcher has set them
    already, and with ESPnet's option `--dist_launcher`, it changes nothing: with that
    option ESPnet itself reads Slurm's variables, a task for each node.

    Args:
        cmd: the command's arguments; `sys.argv` if None.

    Raises:
        InputError: rank 0 is not on the node from which the step was started, as with
            a bare `srun` on a login node.
    """
    arguments = sys.argv[1:] if cmd is None else cmd
    if any(each.partition("=")[0] == "--dist_launcher" for each in arguments):
        return
    variables = from_slurm(os.environ)
    if variables.get("RANK") == "0" and not _is_here(variables["MASTER_ADDR"]):
        raise InputError(
            f"rank 0 is not on {variables['MASTER_ADDR']}, where srun was started: "
            "submit a batch job, or set MASTER_ADDR to the address of the first node"
        )
    os.environ.update(variables)


def from_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

    Empty if this is no step of several tasks, or if RANK is set. MASTER_ADDR and
    MASTER_PORT stay as they are where they are set.

    Args:
        environ: the variables of this process.

    Raises:
        InputError: Slurm's variables do not fit each other.
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
    """Return the tasks on each node of this Slurm step; empty outside of one.

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
    """Return a port of this job alone, and another one after a restart."""
    job = int(environ["SLURM_JOB_ID"])
    start = int(environ.get("SLURM_RESTART_COUNT") or 0)
    step = environ.get("SLURM_STEP_ID", "0")
    start += int(step) if step.isdecimal() else 0
    return FIRST_PORT + (PORTS_OF_A_JOB * job + start % PORTS_OF_A_JOB) % PORTS


def _is_here(address: str) -> bool:
    """Whether an address, or a name, is one of this machine's."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(where)
            except OSError:
                continue
            return True
    return False
