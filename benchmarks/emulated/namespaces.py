"""The module emulates machines by network namespaces on a bridge, with slow links.

Each machine has one link to the bridge, which a token bucket limits in both directions.
A run removes all that it has made when it ends; the next run removes what a killed run
has left.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emulated.learners import Namespace, exit_on_signals
from espnet_distopt.errors import InputError

_NAME = "bench"
"""The start of all names that are made here. A namespace is bench<process>-<machine>,
and a bridge is bench<process>."""
_INTERFACE = "eth0"


def require() -> None:
    """Check that namespaces can be made here.

    Raises:
        InputError: this is not root, or a program is missing.
    """
    if os.geteuid() != 0:
        raise InputError("network namespaces need root: run this as root")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise InputError(f"'{program}' is missing: install iproute2")


@contextmanager
def network(machines: int, megabits: int) -> Iterator[list[Namespace]]:
    """Make emulated machines, yield their places, and remove the machines at the end.

    Args:
        machines: the number of machines.
        megabits: the rate of each link in each direction, in Mbit/s.

    Raises:
        InputError: namespaces cannot be made here.
    """
    require()
    _remove_leftovers()
    process = os.getpid()
    bridge, subnet = f"{_NAME}{process}", f"10.78.{process % 250}"
    with exit_on_signals():
        try:
            _run(f"ip link add {bridge} type bridge")
            _run(f"ip addr add {subnet}.254/24 dev {bridge}")
            _run(f"ip link set {bridge} up")
            for number in range(machines):
                _add_machine(bridge, number, f"{subnet}.{number + 1}/24", megabits)
            yield [
                Namespace(f"{subnet}.254", f"{bridge}-{number}", _INTERFACE)
                for number in range(machines)
            ]
        finally:
            _remove(bridge)


def _add_machine(bridge: str, number: int, address: str, megabits: int) -> None:
    space = f"{bridge}-{number}"
    port = _port(space)
    _run(f"ip netns add {space}")
    _run(f"ip link add {port} type veth peer name {_INTERFACE} netns {space}")
    _run(f"ip link set {port} master {bridge} up")
    _run(f"ip -n {space} addr add {address} dev {_INTERFACE}")
    _run(f"ip -n {space} link set {_INTERFACE} up")
    _run(f"ip -n {space} link set lo up")
    # The burst must hold a packet of up to 64 KiB, as packets are cut up only later.
    shape = f"root tbf rate {megabits}mbit burst 256kb latency 20ms"
    _run(f"tc qdisc add dev {port} {shape}")
    _run(f"tc -n {space} qdisc add dev {_INTERFACE} {shape}")


def _port(space: str) -> str:
    """Return the bridge's end of a machine's cable."""
    return f"v{space.removeprefix(_NAME)}"


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise InputError(f"'{command}' has failed: {done.stderr.strip()}")


def _remove(bridge: str) -> None:
    """Remove the namespaces of a run, with the links into them, and its bridge."""
    for space in _spaces():
        if space.startswith(f"{bridge}-"):
            subprocess.run(["ip", "netns", "del", space], check=False)
    subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def _remove_leftovers() -> None:
    for space in _spaces():
        process = space.removeprefix(_NAME).partition("-")[0]
        ours = space.startswith(_NAME) and process.isdecimal()
        if ours and not Path(f"/proc/{process}").exists():
            _remove(f"{_NAME}{process}")


def _spaces() -> list[str]:
    folder = Path("/var/run/netns")
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
