"""Machines in miniature: network namespaces on a bridge, whose links have a rate.

Each machine has one link to the bridge, shaped by a token bucket in both directions.
Everything is removed on the way out; what a killed run has left is removed by the next.
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
"""Of everything made here: bench<process>-<machine>, bench<process>."""
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
    """Inside, there are so many machines; yields their places.

    Args:
        machines: how many.
        megabits: a second, that a link carries in each direction.

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
    space, port = f"{bridge}-{number}", f"v{bridge[len(_NAME) :]}-{number}"
    _run(f"ip netns add {space}")
    _run(f"ip link add {port} type veth peer name {_INTERFACE} netns {space}")
    _run(f"ip link set {port} master {bridge} up")
    _run(f"ip -n {space} addr add {address} dev {_INTERFACE}")
    _run(f"ip -n {space} link set {_INTERFACE} up")
    _run(f"ip -n {space} link set lo up")
    # A packet that is not yet cut has up to 64 KiB.
    shape = f"root tbf rate {megabits}mbit burst 256kb latency 20ms"
    _run(f"tc qdisc add dev {port} {shape}")
    _run(f"tc -n {space} qdisc add dev {_INTERFACE} {shape}")


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise InputError(f"'{command}' has failed: {done.stderr.strip()}")


def _remove(bridge: str) -> None:
    """Remove a run's namespaces, with the links into them, and its bridge."""
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
