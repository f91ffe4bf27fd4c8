"""The supervisor's pipes to its store process."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from espnet_distopt.distributed.addresses import listen
from espnet_distopt.errors import InputError
from espnet_distopt.launch.children import Children, take
from espnet_distopt.launch.plan import Plan

BACKLOG = 4096
"""Learners that may connect before the store answers, which takes two seconds."""

END = 10.0
"""Seconds after which a store process that does not end is killed."""


class StoreLink:
    """Starts the store process, and exchanges messages with it.

    Attributes:
        port: the port at which the store listens.

    Raises:
        InputError: the port is taken.
    """

    def __init__(
        self, plan: Plan, children: Children, environment: Mapping[str, str]
    ) -> None:
        self._children = children
        self._partial = b""
        self._several = len(plan.counts) > 1
        listener = _listen(plan) if plan.node == 0 else None
        self.port: int = listener.getsockname()[1] if listener else plan.port
        descriptor = listener.fileno() if listener else -1
        numbers = self.port, descriptor, plan.node, ",".join(map(str, plan.counts))
        module = "espnet_distopt.launch.store_process"
        self.process: subprocess.Popen[bytes] = children.start_helper(
            [sys.executable, "-m", module, plan.address, *map(str, numbers)],
            # If the store is gone, one line says so, and not a warning of torch.
            {**environment, "TORCH_CPP_LOG_LEVEL": "ERROR"},
            [descriptor] if listener else [],
        )
        if listener:
            listener.close()
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)

    def send(self, **message: Any) -> None:
        """Write to the store, soon."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `ended` will tell.
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """Return new messages of the process, or None if it has closed its pipe."""
        data = take(self.stdout)
        if data is None:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]

    @property
    def ended(self) -> int | None:
        """The exit status of the process; None while it runs."""
        return self._children.end_of(self.process)

    def close(self) -> None:
        """End the process; node 0 keeps the store until the others have read it.

        On a single node nobody else reads it, and the process may still be importing.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self._children.wait_for(self.process, END if self._several else 0)


def _listen(plan: Plan) -> socket.socket:
    family = socket.AF_INET6 if ":" in plan.address else socket.AF_INET
    try:
        if len(plan.counts) > 1:
            return listen(plan.port, BACKLOG)
        return socket.create_server(
            (plan.address, plan.port), family=family, backlog=BACKLOG
        )
    except OSError as error:
        raise InputError(
            f"the rendezvous store cannot listen at {plan.address}:{plan.port}: "
            f"{error.strerror}; choose another --master HOST:PORT"
        ) from None
