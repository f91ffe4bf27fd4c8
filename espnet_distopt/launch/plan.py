"""How many learners each node has, and what a learner's environment says of that."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from espnet_distopt.distributed.addresses import interface_for_gloo
from espnet_distopt.distributed.launch_variables import (
    INCARNATION,
    LAZY,
    LAZY_GROUP,
    LEARNERS,
)
from espnet_distopt.distributed.slurm_step import Node
from espnet_distopt.errors import InputError

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Plan:
    """The nodes of a run, as one of its supervisors knows them.

    Attributes:
        counts: the number of learners of each node.
        node: the number of this node, from 0.
        address: the address of node 0, where the store listens.
        port: the port of the store; 0 lets the system choose one, for one node.
        host: the name of this node, for messages.
        share_gpu: whether the learners of a node share its first GPU.
    """

    counts: tuple[int, ...]
    node: int
    address: str
    port: int
    host: str
    share_gpu: bool = False

    @property
    def size(self) -> int:
        """The number of learners of all nodes."""
        return sum(self.counts)

    def ranks(self, node: int) -> range:
        """Return the ranks of a node's learners."""
        first = sum(self.counts[:node])
        return range(first, first + self.counts[node])

    def variables(self, rank: int, incarnation: int, port: int) -> dict[str, str]:
        """Return the variables that a learner of this node gets.

        They are those of torchrun, and say that the store is kept by the launcher,
        which listens at `port`, and has started the learner `incarnation` times before.
        """
        replaces = {LAZY_GROUP: LAZY} if incarnation else {}
        return {
            **replaces,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            **self._machine(rank),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # A replaced learner meets the others in the same store, not in a new one.
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
            INCARNATION: str(incarnation),
            LEARNERS: ",".join(map(str, self.counts)),
        }

    def _machine(self, rank: int) -> dict[str, str]:
        """Return the variables that say where a learner is among the machines."""
        if self.share_gpu:
            # Programs take the GPU of LOCAL_RANK, so all learners take the first one.
            # NCCL refuses two processes of one machine on one GPU, and tells machines
            # apart by NCCL_HOSTID. So each seems to be alone on a machine.
            return {
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "GROUP_RANK": str(rank),
                "GROUP_WORLD_SIZE": str(self.size),
                "NCCL_HOSTID": f"learner{rank}",
            }
        return {
            "LOCAL_RANK": str(rank - self.ranks(self.node)[0]),
            "LOCAL_WORLD_SIZE": str(self.counts[self.node]),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(len(self.counts)),
        }


def make_plan(
    nproc: str,
    nnodes: int | None,
    node_rank: int | None,
    master: str | None,
    step: Node | None,
    environment: Mapping[str, str],
) -> Plan:
    """Return the plan that the options and Slurm's variables describe.

    Args:
        nproc: the number of learners of each node, or one number for each node with
            commas between them.
        nnodes: the number of nodes; None: as Slurm says, or 1.
        node_rank: the number of this node; None: as Slurm says, or 0.
        master: `host:port` of the store; None: as Slurm says, or this machine.
        step: this node's place in a Slurm step; None outside of one.
        environment: the variables of this process.

    Raises:
        InputError: an option is wrong, or one is missing.
    """
    host = environment.get("SLURMD_NODENAME") or socket.gethostname()
    if nnodes is None and step is not None:
        nodes, node = step.nodes, step.number
        master = master or f"{step.address}:{step.port}"
    else:
        nodes = 1 if nnodes is None else nnodes
        node = node_rank or 0
    if nodes < 1:
        raise InputError(f"--nnodes {nodes}: expected at least 1")
    if not 0 <= node < nodes:
        raise InputError(f"--node_rank {node}: expected 0 to {nodes - 1}")
    if nodes > 1 and nnodes is not None and node_rank is None:
        raise InputError(f"--nnodes {nodes} needs --node_rank, 0 to {nodes - 1}")
    if nodes > 1 and master is None:
        raise InputError(f"--nnodes {nodes} needs --master HOST:PORT of node 0")
    address, port = _host_and_port(master or "127.0.0.1:0", own=master is None)
    return Plan(_counts(nproc, nodes), node, address, port, host)


def network_variables(plan: Plan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which gloo and NCCL reach the other learners.

    They are none that `environment` has, the variables of this process, and none that
    nobody needs.
    """
    if len(plan.counts) == 1:
        # NCCL takes learners that share a GPU for machines, and goes by sockets.
        needed = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        return {
            name: value
            for name, value in needed.items()
            if plan.share_gpu and name not in environment
        }
    if GLOO_INTERFACE in environment:
        return {}
    found = interface_for_gloo(plan.address, plan.port)
    return {GLOO_INTERFACE: found} if found else {}


def _counts(nproc: str, nodes: int) -> tuple[int, ...]:
    parts = nproc.split(",")
    if not all(re.fullmatch(r"0*[1-9]\d{0,5}", part) for part in parts):
        raise InputError(
            f"--nproc {nproc}: expected a number from 1, or one for each node, as 4,4,3"
        )
    counts = tuple(map(int, parts))
    if len(counts) == 1:
        counts *= nodes
    if len(counts) != nodes:
        raise InputError(f"--nproc {nproc}: that is {len(counts)} nodes, not {nodes}")
    return counts


def _host_and_port(text: str, own: bool) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    least = 0 if own else 1
    if not host or not port.isdecimal() or not least <= int(port) <= 65535:
        raise InputError(f"--master {text}: expected HOST:PORT, as 10.0.0.1:29500")
    return host.strip("[]"), int(port)
