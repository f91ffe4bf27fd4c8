"""Groups of NCCL that a driver makes for itself, and that can lose a learner.

If a learner dies, a collective of NCCL may never end: its kernel waits on the GPU for
data that nobody sends, and the thread that waits for the GPU hangs. Only an abort ends
the kernel. torch has two threads for each of its own groups that look for such
operations, and then end the whole process, after a minute or at once. A group that is
made with TORCH_NCCL_BLOCKING_WAIT=1 has neither of them (torch 2.6 and later). So that
variable is set here for as long as a group is made, and the driver looks for lost
learners itself.

The group is connected when it is made, and not by its first collective, so that a
waiter can be left behind in that, too.

NCCL says on a page why it cannot connect the learners; `advised` says in one line what
to do about it. What it says later, when a learner has died, is for `watch.explain`.
"""

import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from espnet_distopt.errors import InputError, message

ABORT = 60.0
"""Seconds for which the training waits for an abort; it takes less than one."""

_NO_WATCHDOG = "TORCH_NCCL_BLOCKING_WAIT"


class NcclGroup:
    """A group of NCCL.

    Its operations raise RuntimeError once the group is aborted: an aborted kernel looks
    complete, and its tensor holds anything. It takes tensors of one GPU, and arguments
    as `gloo.make_group`.

    Raises:
        InputError: two learners share a GPU.
        RuntimeError: NCCL cannot connect the members.
    """

    def __init__(
        self, store: Any, rank: int, size: int, device: torch.device, limit: timedelta
    ) -> None:
        self._rank, self._size = rank, size
        self.limit = limit.total_seconds()
        self.aborted = False
        self._lock = threading.Lock()
        self._aborting: threading.Thread | None = None
        self._failed: Exception | None = None
        self._last: Callable[[], _Operation | None] = lambda: None
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        with _without_watchdog():
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        with advised():
            self._group.eager_connect_single_device(device)

    def rank(self) -> int:
        """Return this learner's place in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of members."""
        return self._size

    def allreduce(self, tensors: list[Tensor]) -> "_Operation":
        """Begin to add up one tensor, in place."""
        return self._begun(self._group.allreduce, tensors)

    def broadcast(self, tensor: Tensor, root: int) -> "_Operation":
        """Begin to send the tensor of `root` to all."""
        return self._begun(self._group.broadcast, tensor, root)

    def alltoall_base(
        self, received: Tensor, sent: Tensor, into: list[int], out: list[int]
    ) -> "_Operation":
        """Begin to send each member its row."""
        return self._begun(self._group.alltoall_base, received, sent, into, out)

    def _allgather_base(self, received: Tensor, sent: Tensor) -> "_Operation":
        return self._begun(self._group._allgather_base, received, sent)

    def _begun(self, begin: Any, *arguments: Any) -> "_Operation":
        self.check()
        operation = _Operation(self, begin(*arguments))
        self._last = weakref.ref(operation)
        return operation

    def check(self) -> None:
        """Raise RuntimeError if the group is aborted."""
        if self.aborted:
            raise RuntimeError("this learner has aborted its operations of NCCL")

    def sever(self) -> None:
        """Begin to abort the group; this returns at once."""
        self.aborted = True
        with self._lock:
            if self._aborting is None:
                self._aborting = threading.Thread(
                    target=self._abort, name="distopt-abort", daemon=True
                )
                self._aborting.start()

    def abort(self) -> None:
        """End all operations of the group.

        What the GPU's stream does afterwards with their tensors, it does when they have
        ended.

        Raises:
            RuntimeError: NCCL has not ended them.
        """
        self.sever()
        assert self._aborting is not None
        self._aborting.join(ABORT)
        if self._aborting.is_alive() or self._failed is not None:
            raise RuntimeError("NCCL cannot be aborted") from self._failed
        if (last := self._last()) is not None:
            last.let_stream_wait()

    def _abort(self) -> None:
        try:
            self._group.abort()
        except Exception as error:  # `abort` raises it, where anybody waits for this.
            self._failed = error

    def end(self, well: bool) -> None:
        """Let go of the GPU's memory and the connections.

        If all operations of this learner were completed (`well`), what it has sent
        still reaches the others.
        """
        if self.aborted or not well:
            self.abort()
        else:
            self._group.shutdown()


class _Operation:
    """An operation of a group."""

    def __init__(self, group: NcclGroup, work: Any) -> None:
        self._group, self._work = group, work
        self._until = time.monotonic() + group.limit

    def is_completed(self) -> bool:
        """Return whether it is complete, or has failed.

        Raises:
            RuntimeError: the group is aborted, or the operation takes too long.
        """
        # An abort completes it, too, and is noted before that.
        completed: bool = self._work.is_completed()
        self._group.check()
        if not completed and time.monotonic() > self._until:
            raise RuntimeError(f"NCCL has timed out after {self._group.limit:.0f} s")
        return completed

    def let_stream_wait(self) -> None:
        """Let the GPU's stream wait for the end of it, also if it fails."""
        self._work.synchronize()

    def wait(self) -> None:
        """Let the GPU's stream wait for it, once it is complete.

        Raises:
            RuntimeError: it has failed.
        """
        self._work.wait()


@contextmanager
def _without_watchdog() -> Generator[None, None, None]:
    """Inside, a group of NCCL is made without the threads that end the process."""
    before = os.environ.pop(_NO_WATCHDOG, None)
    os.environ[_NO_WATCHDOG] = "1"
    try:
        yield
    finally:
        del os.environ[_NO_WATCHDOG]
        if before is not None:
            os.environ[_NO_WATCHDOG] = before


_ADVICE = (
    (
        r"Duplicate GPU detected.*",
        "NCCL needs a GPU for each learner: start as many learners on a machine as it "
        "has GPUs (in a loop of your own, call torch.cuda.set_device with LOCAL_RANK "
        "first), or let learners share one, to try things, by --share_gpu true or "
        "gloo (--dist_backend gloo, init_process_group('gloo'))",
    ),
    (
        r".*(?:[Nn]o GPUs found|No CUDA GPUs are available|invalid device ordinal).*",
        "NCCL needs a GPU for each learner, and PyTorch does not see it: look at "
        "nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda, or train on CPUs "
        "(--ngpu 0, init_process_group('gloo'))",
    ),
    (
        r"[^\n]*(?:socket\w*Connect\b|[Cc]onnect to \S+ (?:failed|returned)"
        r"|[Nn]o (?:socket )?interface found|failed to find .*interface).*",
        "NCCL cannot connect the learners: set NCCL_SOCKET_IFNAME to the network "
        "interface by which the machines reach each other (`ip -brief address` lists "
        "them), and see that no firewall closes its ports",
    ),
)
"""What an error of NCCL's says (a line), and what to do about it."""


def advice(text: str) -> str | None:
    """Return what to do about an error of NCCL's, in one line; None if unknown."""
    for pattern, what in _ADVICE:
        if found := re.search(pattern, text):
            return f"{what}. NCCL said: {found[0].strip()}"
    return None


@contextmanager
def advised() -> Generator[None, None, None]:
    """Inside, a learner meets the others by NCCL for the first time.

    Raises:
        InputError: that has failed, and it is known what to do. NCCL's own error is its
            cause, and is in the log.
    """
    try:
        yield
    except RuntimeError as error:
        what = advice(message(error))
        if what is None:
            raise
        logging.getLogger(__name__).info(message(error))
        raise InputError(what) from error
