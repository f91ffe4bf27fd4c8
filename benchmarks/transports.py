"""The benchmark compares transports for gossip: exchanges of two learners each.

Two processes swap a tensor of 140 MB, which is a model of 35 million parameters, and
eight processes swap messages of 1 kB in pairs that change from round to round:

    gloo      send and receive of one gloo group of all processes, posted together
    own       a TCP connection for each pair (`distributed.channel`), with the
              invitation and the two confirmations that make an exchange atomic
    zeromq    a ZeroMQ socket for each pair, without copies where ZeroMQ has them

    python benchmarks/transports.py          # a minute; zeromq where pyzmq is installed
"""

import argparse
import importlib.util
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from report import spread, write_report
from torch import Tensor

from espnet_distopt.distributed.channel import Channel, Header, Kind, memory_of
from espnet_distopt.distributed.wakeup import WakeUp

LARGE, SMALL = 35_000_000, 256
"""Elements of float32: 140 MB and 1 kB."""

Swap = Callable[[int, Tensor, Tensor], None]
"""Sends a tensor to a peer, and receives one from it."""


def gloo(rank: int, size: int, ports: list[int]) -> Swap:
    """Return the exchange over one group of all processes."""
    store = dist.TCPStore(
        "127.0.0.1", ports[0], is_master=rank == 0, wait_for_workers=False
    )
    group: Any = dist.ProcessGroupGloo(store, rank, size, timedelta(minutes=1))

    def swap(peer: int, sent: Tensor, into: Tensor) -> None:
        works = group.send([sent], peer, 1), group.recv([into], peer, 1)
        for work in works:
            work.wait()

    return swap


def own(rank: int, size: int, ports: list[int]) -> Swap:
    """Return the exchange over a connection for each pair."""
    listener = socket.create_server(("127.0.0.1", ports[rank]))
    wakeup = WakeUp()
    channels: dict[int, Channel] = {}

    def channel(connection: socket.socket) -> Channel:
        return Channel(connection, wakeup, lambda: None, 30)

    for peer in range(rank):
        connection = _connect(ports[peer])
        connection.sendall(bytes([rank]))
        channels[peer] = channel(connection)
    for _ in range(rank + 1, size):
        connection, _ = listener.accept()
        peer = connection.recv(1)[0]
        channels[peer] = channel(connection)

    def swap(peer: int, sent: Tensor, into: Tensor) -> None:
        pair, out, back = channels[peer], memory_of(sent), memory_of(into)
        header = Header(Kind.DATA, 0, 0, len(out))
        if rank < peer:
            pair.send(header._replace(kind=Kind.INVITE))
            pair.await_reply()
            pair.swap(header, out, back)
            pair.send(header._replace(kind=Kind.RECEIVED))
        else:
            pair.receive()
            pair.swap(header, out, back)
        verdict = pair.receive()
        if rank > peer:
            pair.send(verdict._replace(kind=Kind.COMMIT))

    return swap


def zeromq(rank: int, size: int, ports: list[int]) -> Swap:
    """Return the exchange over a ZeroMQ socket for each pair."""
    zmq: Any = importlib.import_module("zmq")
    context = zmq.Context()
    sockets = {}
    for peer in range(size):
        if peer == rank:
            continue
        sockets[peer] = context.socket(zmq.PAIR)
        low, high = sorted((rank, peer))
        place = f"tcp://127.0.0.1:{ports[low * size + high]}"
        if rank == low:
            sockets[peer].bind(place)
        else:
            sockets[peer].connect(place)

    def swap(peer: int, sent: Tensor, into: Tensor) -> None:
        tracker = sockets[peer].send(memory_of(sent), copy=False, track=True)
        frame = sockets[peer].recv(copy=False)  # ZeroMQ chooses where it receives.
        into.view(torch.uint8).copy_(torch.frombuffer(frame.buffer, dtype=torch.uint8))
        tracker.wait()

    return swap


TRANSPORTS = {"gloo": gloo, "own": own, "zeromq": zeromq}


def _connect(port: int) -> socket.socket:
    for _ in range(500):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise TimeoutError(f"nobody listens at port {port}")


def opponent(rank: int, size: int, turn: int) -> int:
    """Return the peer of `rank` in a round of a tournament; `size` is even."""
    last = size - 1
    if rank == last:
        return turn * (size // 2) % last
    other = (turn - rank) % last
    return last if other == rank else other


def work(
    name: str, rank: int, size: int, ports: list[int], turns: int, pipe: Connection
) -> None:
    """Swap tensors, and send the seconds of each turn."""
    torch.set_num_threads(1)
    swap = TRANSPORTS[name](rank, size, ports)
    elements = LARGE if size == 2 else SMALL
    sent, into = torch.full((elements,), float(rank)), torch.empty(elements)
    took = []
    for turn in range(turns + 1):
        peer = opponent(rank, size, turn)
        start = time.perf_counter()
        swap(peer, sent, into)
        took.append(time.perf_counter() - start)
        assert into[0] == into[-1] == peer
    pipe.send(took[1:])
    pipe.recv()  # Nobody closes a connection that others still read from.


def measure(name: str, size: int, turns: int) -> list[float]:
    """Return the seconds of each exchange, as the first process has seen it."""
    context = multiprocessing.get_context("spawn")
    ports = _free_ports(size * size)
    pipes, processes = [], []
    for rank in range(size):
        here, there = context.Pipe()
        args = name, rank, size, ports, turns, there
        processes.append(context.Process(target=work, args=args, daemon=True))
        processes[-1].start()
        pipes.append(here)
    took = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.kill()  # ZeroMQ would wait for its sockets to close.
        process.join()
    first: list[float] = took[0]
    return first


def _free_ports(number: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="exchange a few times")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    rounds, large, small = (1, 2, 20) if args.quick else (3, 5, 1000)
    names = [n for n in TRANSPORTS if n != "zeromq" or importlib.util.find_spec("zmq")]
    rows: dict[str, dict[str, list[float]]] = {
        name: {"large": [], "small": []} for name in names
    }
    for _ in range(rounds):  # They alternate, as the load of a machine changes.
        for name, row in rows.items():
            row["large"] += measure(name, 2, large)
    for name, row in rows.items():
        row["small"] = measure(name, 8, small)
    table = ["| transport | 140 MB both ways | 1 kB both ways, 8 learners |"]
    table += ["| :-- | --: | --: |"]
    for name, row in rows.items():
        thousandth = [1000 * seconds for seconds in row["small"]]
        seconds, ms = spread(row["large"], ".3f"), spread(thousandth, ".2f")
        table.append(f"| {name} | {seconds} s | {ms} ms |")
    caption = (
        f"One exchange over the loopback, of {rounds * large} between two processes, "
        f"in {rounds} rounds of the transports, and of "
        f"{small} of each of eight, whose pairs change: median (least - most). The own "
        "connections carry the invitation and the confirmations of an exchange, too. "
        f"The load average of the machine at the end: {os.getloadavg()[0]:.1f}."
    )
    write_report(
        "transports",
        args.quick,
        args.out,
        table,
        caption,
        rows,
        seeds=(),
        repeats=rounds * large,
    )


if __name__ == "__main__":
    main()
