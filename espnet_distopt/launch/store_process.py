"""The process beside a supervisor that keeps the rendezvous store, or is its client.

On node 0 it keeps the store. On every node it is the supervisor's eyes and mouth there:
it looks into the store twice a second and writes what is new to stdout, and it reads
from stdin what to write into the store. Both are lines of JSON. It ends when stdin is
closed.

    python -m espnet_distopt.launch.store_process HOST PORT DESCRIPTOR NODE COUNTS

DESCRIPTOR is the listening socket of node 0, and -1 on the other nodes. COUNTS are the
numbers of learners of the nodes, with commas between them.
"""

import contextlib
import json
import os
import resource
import select
import sys
import time
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from espnet_distopt.distributed import keys

POLL = 0.5
"""Seconds between two looks into the store."""

SILENCE = 30.0
"""Seconds without a look of a node's process after which the node is lost."""

CONNECT = timedelta(seconds=300)
"""How long a node waits for node 0, whose job step may begin later."""

FAREWELL = 5.0
"""Seconds for which node 0 keeps the store, so that the others read the verdict."""

_FROM_LEARNERS = {
    "survives": keys.SURVIVES,
    "replaced": keys.JOINED,
    "hopeless": keys.HOPELESS,
}
"""What learners tell the launcher, and the keys by which they do."""


class StoreProcess:
    """The connection of this node to the store; its arguments are the command's."""

    def __init__(
        self, host: str, port: int, descriptor: int, node: int, counts: str
    ) -> None:
        self.node, self.counts = node, counts
        self.others = [n for n in range(counts.count(",") + 1) if n != node]
        keeps: dict[str, Any] = {"is_master": True, "master_listen_fd": descriptor}
        # Node 0 of several listens at all its addresses, a single one at `host` alone.
        own = "127.0.0.1" if self.others else host
        self.store: Any = TCPStore(
            host if descriptor < 0 else own,
            port,
            timeout=CONNECT,
            wait_for_workers=False,
            **(keeps if descriptor >= 0 else {"is_master": False}),
        )
        self._told: dict[str, Any] = {}
        self._asked: list[str] = []
        self._looks = 0
        self._seen: dict[int, tuple[bytes, float]] = {}

    def join(self) -> None:
        """Announce this node, and say how often it has joined before.

        The supervisor reads `joined`, or `error` if this node does not fit the others.
        """
        key, own_look = keys.launch("counts"), keys.launch(f"look/{self.node}")
        if self.node == 0:
            # It keeps the store; refused, it would take the others along.
            self.store.compare_set(key, "", self.counts)
        agreed = self.store.get(key).decode()
        if agreed != self.counts:
            self.say(error=f"other nodes were started with --nproc {agreed}")
        elif self._grows(own_look):
            self.say(error=f"another launcher is node {self.node} of this run")
        else:
            # From now on node 0 notices if this node looks no more.
            self.store.set(own_look, "0")
            self.say(joined=self.store.add(keys.launch(f"joined/{self.node}"), 1) - 1)

    def _grows(self, look: str) -> bool:
        """Return whether another process counts its looks into the store."""
        if not self.others or not self.store.check([look]):
            return False
        before = self.store.get(look)
        time.sleep(4 * POLL)
        return bool(self.store.get(look) != before)

    def run(self) -> None:
        """Look into the store until stdin is closed."""
        stdin, partial = sys.stdin.fileno(), b""
        while True:
            # Read without a buffer, in which select would not see a second line.
            if select.select([stdin], [], [], POLL)[0]:
                data = os.read(stdin, 65536)
                if not data:
                    break
                *lines, partial = (partial + data).split(b"\n")
                for line in lines:
                    self.write(json.loads(line))
            self.look()
            while self._asked:
                key = keys.end(self._asked.pop(0))
                said = self.store.get(key).decode() if self.store.check([key]) else ""
                self.say(answered=said)
        if self.node == 0:
            self._wait_for_readers()

    def write(self, message: dict[str, Any]) -> None:
        """Write what the supervisor says; of failures, the first one counts.

        `gone` is a process (RANK.INCARNATION) that has ended, for the learners.
        `asked` is not for the store: what a process (RANK.INCARNATION) has said of its
        end, if it has, is the answer after the next look. Answers come in the order of
        the questions.
        """
        for name, value in message.items():
            if name == "asked":
                self._asked.append(value)
            elif name == "gone":
                self.store.append(keys.ENDED, f"{value} ")
            elif name == "failed":
                self.store.compare_set(keys.launch(name), "", json.dumps(value))
            else:
                self.store.set(keys.launch(name), json.dumps(value))

    def look(self) -> None:
        """Say what is new in the store."""
        for name, key in _FROM_LEARNERS.items():
            if self.store.check([key]):
                self._say_new(name, self.store.get(key).decode())
        if not self.others:
            return
        self._looks += 1
        self.store.set(keys.launch(f"look/{self.node}"), str(self._looks))
        for name in ("failed", "verdict"):
            key = keys.launch(name)
            if self.store.check([key]):
                self._say_new(name, json.loads(self.store.get(key)))
        if "verdict" in self._told:
            self.store.set(keys.launch(f"read/{self.node}"), "")
        if self.node == 0:
            for node in (*self.others, 0):  # Its own end is news after all other.
                self._look_for(node)

    def _look_for(self, node: int) -> None:
        """Say that a node has ended, and how; or whether it looks into the store."""
        key = keys.launch(f"ended/{node}")
        if self.store.check([key]):
            how = json.loads(self.store.get(key))
            self._say_new(f"ended/{node}", how)
            return
        key, now = keys.launch(f"look/{node}"), time.monotonic()
        count = self.store.get(key) if self.store.check([key]) else b""
        before, since = self._seen.get(node, (None, now))
        if count != before:
            self._seen[node] = count, now
            if count:
                self._say_new(f"looks/{node}", True)
        elif count and now - since > SILENCE:
            self._say_new(f"looks/{node}", False)

    def _say_new(self, name: str, value: Any) -> None:
        if name not in self._told or self._told[name] != value:
            self._told[name] = value
            self.say(**{name: value})

    def say(self, **message: Any) -> None:
        """Write a line for the supervisor."""
        print(json.dumps(message), flush=True)

    def _wait_for_readers(self) -> None:
        deadline = time.monotonic() + FAREWELL
        read = [
            keys.launch(f"read/{node}")
            for node in self.others
            if f"ended/{node}" in self._told
        ]
        while read and not self.store.check(read) and time.monotonic() < deadline:
            time.sleep(POLL / 5)


def allow_many_connections() -> None:
    """Take as many descriptors as this process may have.

    A learner has about eight connections to the store in each open session, so that the
    usual limit of 1,024 would end trainings of more than about 126 learners.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # Some systems have another limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Keep the store, or be its client, until the supervisor closes the pipe."""
    host, port, descriptor, node, counts = sys.argv[1:]
    allow_many_connections()
    try:
        process = StoreProcess(host, int(port), int(descriptor), int(node), counts)
        process.join()
        process.run()
    except RuntimeError:  # All errors of the store are; only a client sees them.
        where = f"{host}:{port}"
        print(json.dumps({"error": f"the store at {where} is gone, or out of reach"}))
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
