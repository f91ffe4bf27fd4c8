"""How learners leave a session, and how silent ones are described."""

import time
from collections.abc import Mapping, Sequence
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

    A learner that has not begun the session is as one that is silent: it may be about
    to begin, and would then need the store to hear why the others have ended.

    Args:
        store: the store of all learners.
        keys: for each rank the key of its heartbeat.
        silence: seconds without a heartbeat after which a learner counts as lost.
        seconds: the time limit; None means none.
    """
    begin = time.monotonic()
    staying = dict.fromkeys(keys, (b"", begin))
    while staying and (seconds is None or time.monotonic() - begin < seconds):
        counts = _counts(store, [keys[peer] for peer in staying])
        now = time.monotonic()
        for peer, count in zip(tuple(staying), counts, strict=True):
            before, since = staying[peer]
            if count == LEFT or now - since > silence:
                del staying[peer]
            elif count != before:
                staying[peer] = count, now
        time.sleep(0.005)


def _counts(store: Any, keys: Sequence[str]) -> list[bytes]:
    """Return the values of keys; b"" for one that does not exist.

    To read a key that does not exist would wait for it, and no signal would end that.
    """
    if store.check(keys):
        return [bytes(count) for count in store.multi_get(keys)]
    return [bytes(store.get(key)) if store.check([key]) else b"" for key in keys]
