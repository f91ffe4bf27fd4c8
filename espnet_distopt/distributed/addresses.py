"""The addresses at which learners listen for each other, in the rendezvous store."""

import errno
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Any

from espnet_distopt.distributed.connections import private

BACKLOG = 128
"""The most connections that wait to be accepted."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A number that no other machine has; Linux draws it when it starts."""

_SIOCGIFADDR = 0x8915
_ELSEWHERE = "192.0.2.1", 9
"""An address on no network (RFC 5737): the route to it is the default one."""


def listen(port: int = 0, backlog: int = BACKLOG) -> socket.socket:
    """Return a socket that listens at all addresses of this machine, old and new.

    Port 0 lets the system choose one. `backlog` is the most connections that wait to be
    accepted.

    Raises:
        OSError: the port is taken.
    """
    if socket.has_dualstack_ipv6():
        six = socket.AF_INET6
        try:
            return socket.create_server(
                ("", port), family=six, dualstack_ipv6=True, backlog=backlog
            )
        except OSError as error:  # IPv6 is compiled in and switched off.
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), backlog=backlog)


def listen_for(store: Any) -> tuple[socket.socket, str]:
    """Return a socket that listens for the learners of a run, and its address.

    It does not block at first, and processes that are forked from now on give it up.
    """
    listener = private(listen())
    listener.setblocking(False)
    port = listener.getsockname()[1]
    return listener, own_address(port, store_address(store))


def own_address(port: int, store: tuple[str, int] | None) -> str:
    """Return where others reach this process: its machine, then hosts, then the port.

    The first host is that of the interface which GLOO_SOCKET_IFNAME names, or else that
    from which this process reaches the store. On the machine of the store it may be one
    that other machines cannot reach, and so that of the default route comes second.
    `store` is as `store_address` returns it.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if name:
        hosts = [_host_of_interface(name)]
    else:
        hosts = [host_towards(*store)] if store else ["127.0.0.1"]
        if is_loopback(hosts[0]):
            hosts.append(outward_host())
    return " ".join([machine(), *hosts, str(port)])


def interface_for_gloo(host: str, port: int) -> str | None:
    """Return the interface that gloo must be told of, to be reached from elsewhere.

    gloo listens at the address of the machine's own name. Where the name has none, or
    that of the loopback, as Debian writes it into /etc/hosts, only this machine's own
    processes reach it, and those of other machines fail after half a minute. So this is
    the interface from which `host` is reached, which is on the network of the others,
    such as the store's; the port is any one. None if gloo finds an address by itself,
    or `host` is only known on the loopback.
    """
    if not is_loopback(named_host()):
        return None
    try:
        own = host_towards(host, port)
    except OSError:
        return None
    if is_loopback(own):
        return None
    return next((each for each in _interfaces() if _address(each) == own), None)


def named_host() -> str:
    """Return the address that this machine's own name means, where gloo listens."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return "127.0.0.1"


def outward_host() -> str:
    """Return this machine's address on its default route; without one, a loopback."""
    return host_towards(*_ELSEWHERE)


def reachable(address: str) -> tuple[str, int]:
    """Return host and port at which this process reaches one of an `own_address`."""
    where, *hosts, port = address.split(" ")
    if where != machine():
        hosts = [host for host in hosts if not is_loopback(host)] or hosts
    return hosts[0], int(port)


def machine() -> str:
    """Return a name of this machine; two that are copies of one may be called alike."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    return f"{socket.gethostname()}/{boot}"


def store_address(store: Any) -> tuple[str, int] | None:
    """Return host and port of a store; None if it is not a TCP store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port = getattr(store, "port", None)
    return None if port is None else (store.host, port)


def _host_of_interface(name: str) -> str:
    address = _address(name)
    if address is None:
        raise RuntimeError(
            f"GLOO_SOCKET_IFNAME names {name}, which has no IPv4 address: this machine "
            f"has {', '.join(_interfaces())}"
        )
    return address


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def _address(interface: str) -> str | None:
    """Return the IPv4 address of an interface; None if it has none or is not there."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def host_towards(host: str, port: int) -> str:
    """Return the address from which this machine sends to `host`; nothing is sent."""
    for family, kind, protocol, _, target in socket.getaddrinfo(
        host, port, type=socket.SOCK_DGRAM
    ):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)
            except OSError:
                continue
            own: str = probe.getsockname()[0]
            return own.removeprefix("::ffff:")
    return "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Return whether an address is one of the loopback."""
    return host == "::1" or host.startswith("127.")
