"""One learner of this node: its processes, one after another, and what they write."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, TextIO

from espnet_distopt.launch.children import Children, kill_group, take
from espnet_distopt.launch.verdict import Life


def write_out(stream: TextIO, data: bytes) -> None:
    """Write whole lines at once, or to nowhere if nobody can read them any more.

    A launcher whose terminal is gone has learners that still save their state.

    Raises:
        OSError: it cannot be written for another reason.
    """
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # What is in the buffer goes there, too.
        os.close(nowhere)


class Learner:
    """Starts a learner's process, and starts it again if it is told to.

    With `label` each line of its output begins with `RANK: `.

    Attributes:
        starts: the number of its processes so far.
        status: the exit status of its last process; None while that runs, and -1 before
            the first one.
        lost: whether it has died for good while the others go on.
        ended: when its last process ended, in seconds of this machine's clock.
        joining: whether its process is a replacement that has not joined the others.
        why: why its last process has ended, as far as that has said so itself.
        failure: how its program has failed while it took part in the training, if no
            replacement has joined since then.
    """

    def __init__(
        self, rank: int, host: str, children: Children, label: bool = False
    ) -> None:
        self.rank, self.host, self.label = rank, host, label
        self.starts = 0
        self.status: int | None = -1
        self.lost = False
        self.ended = 0.0
        self.joining = False
        self.why = ""
        self.failure: Life | None = None
        self._incarnation, self._began = 0, 0.0
        self._children = children
        self._process: subprocess.Popen[bytes] | None = None
        self._partial: dict[int, bytes] = {}

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], incarnation: int
    ) -> None:
        """Start the next process, which says by its incarnation that it has joined."""
        self._process = self._children.start(command, environment, self.label)
        self.starts += 1
        self.status, self.why = None, ""
        self.joining = incarnation > 0
        self._incarnation, self._began = incarnation, time.monotonic()
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def name(self) -> str:
        """The name of its process in the store: RANK.INCARNATION."""
        return f"{self.rank}.{self._incarnation}"

    def note_joined(self, replacements: str) -> None:
        """Note which replacements have joined (`keys.JOINED`)."""
        if self.joining and self.name in replacements.split():
            self.joining, self.failure = False, None

    def is_late(self, seconds: float) -> bool:
        """Return whether the process has been joining the others for too long."""
        late = time.monotonic() - self._began > seconds
        return self.joining and self.status is None and late

    @property
    def pipes(self) -> list[IO[bytes]]:
        """The pipes from which the output of the process comes, if it has any."""
        process = self._process
        found = (process.stdout, process.stderr) if process else ()
        return [pipe for pipe in found if pipe is not None and not pipe.closed]

    def relay(self, pipe: IO[bytes]) -> bool:
        """Write on the whole lines that a pipe has; return whether it had anything."""
        data = take(pipe)
        number = pipe.fileno()
        *lines, rest = (self._partial.pop(number, b"") + (data or b"")).split(b"\n")
        if data is None and rest:
            lines.append(rest)
        elif rest:
            self._partial[number] = rest
        assert self._process is not None
        out = sys.stdout if pipe is self._process.stdout else sys.stderr
        label = f"{self.rank}: ".encode()
        write_out(out, b"".join(label + line + b"\n" for line in lines))
        return bool(data)

    def take_end(self) -> int | None:
        """Return the exit status of the process once, when it has ended."""
        if self._process is None or self.status is not None:
            return None
        self.status = self._children.end_of(self._process)
        self.ended = time.time()
        return self.status

    def send(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self._process is not None and self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        self.joining = False
        if self._process is not None and self.status is None:
            kill_group(self._process)

    @property
    def life(self) -> Life:
        """How the learner has fared; its last process has ended."""
        status = 0 if self.status is None else self.status
        restarts = max(0, self.starts - 1)
        return Life(
            self.rank, self.host, status, restarts, self.lost, self.ended, self.why
        )
