"""The order of what the two sides of a learner do on a GPU.

The gossip side copies between the GPU and the host, and corrects the snapshot, on a
stream of its own. So a copy does not hold up the layers, which run on the stream of the
training side. Each side hands tensors to the other only within a section of its
program, which runs under the driver's monitor. So this is enough:

    1. At the end of a section a side records an event on its stream.
    2. At the beginning of a section a side lets its stream wait for the last event of
       the other side.

One exchange of Anna:

    1. Her training side publishes: it copies the parameters to the snapshot, and
       records an event.
    2. Her gossip side begins the exchange. Its stream waits for that event, and then
       copies the snapshot to the host, while the next layers run.
    3. It corrects the snapshot, hands the difference over, and records an event.
    4. Her training side ends a step. Its stream waits for that event, and then adds the
       difference to the parameters.

What could go wrong, and why it does not:

    If the gossip side used the stream of the training side, as a thread does that
    chooses none, each copy would wait for all layers before it, and all layers after it
    for the copy. If the user trained on a stream of their own, nothing would be in
    order.

    If the training side waited for all that the gossip side has begun, it would wait
    for a copy in flight. It waits for the event of the last section only, and the copy
    was begun after that.

On a CPU nothing is done: there an operation has ended when its call returns.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


class Streams:
    """The streams of both sides, from the beginning of an epoch's gossip.

    The training thread makes it, and has worked on its current stream until then. The
    parameters are on `device`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        if self._device is None:
            return
        self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._trained = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._gossiped = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._trained.record(torch.cuda.current_stream(self._device))

    @contextmanager
    def beside(self) -> Generator[None, None, None]:
        """Inside, the calling thread, which is the gossip's, uses its own stream."""
        if self._device is None:
            yield
            return
        # A new thread is on device 0, where its pinned memory would open a context.
        with torch.cuda.device(self._device), torch.cuda.stream(self._side):
            yield

    def gossip_section(self) -> AbstractContextManager[None]:
        """Inside, the gossip side runs a section of its program."""
        if self._device is None:
            return nullcontext()
        return _section(self._side, self._trained, self._gossiped)

    def training_section(self) -> AbstractContextManager[None]:
        """Inside, the training side runs a section of its program."""
        if self._device is None:
            return nullcontext()
        stream = torch.cuda.current_stream(self._device)
        return _section(stream, self._gossiped, self._trained)


@contextmanager
def _section(stream: Any, after: Any, end: Any) -> Generator[None, None, None]:
    """Let a stream wait for the event `after`; record the event `end` at the end."""
    stream.wait_event(after)
    try:
        yield
    finally:
        end.record(stream)
