"""How learners leave a session, and how silent ones are described."""

import time
from collections.abc import Mapping
from typing import Any

LEFT = b"left"
"""The heartbeat count of a learner that has left the session."""


def describe(peer: int, count: bytes, seconds: float) -> str:
    """Return in words that a learner is silent.

    Args:
        peer: its rank.
        count: its last count of heartbeats.
        seconds: since it has last counted on.
    """
    if count == LEFT:
        return f"learner {peer} has left the session {seconds:.0f} s ago"
    return (
        f"learner {peer} has been silent for {seconds:.0f} s: its process or its "
        "machine is gone or does not respond"
    )


def wait_for_leavers(
    store: Any, keys: Mapping[int, str], silence: float, seconds: float | None
) -> None:
    """Wait until the others have left or are silent.

    Args:
        store: the store of all learners.
        keys: for each rank the key of its heartbeat.
        silence: seconds without a heartbeat after which a learner counts as lost.
        seconds: the time limit; None means none.
    """
    begin = time.monotonic()
    staying = dict.fromkeys(keys, (b"", begin))
    while staying and (seconds is None or time.monotonic() - begin < seconds):
        counts = store.multi_get([keys[peer] for peer in staying])
        now = time.monotonic()
        for peer, count in zip(tuple(staying), counts, strict=True):
            before, since = staying[peer]
            if bytes(count) == LEFT or now - since > silence:
                del staying[peer]
            elif bytes(count) != before:
                staying[peer] = bytes(count), now
        time.sleep(0.005)
