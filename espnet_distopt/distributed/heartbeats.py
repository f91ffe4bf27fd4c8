"""What a process has heard of the heartbeats of others, and who is lost by that.

A learner is lost if its count stands still for `silence` seconds. It is lost sooner, if
a connection to it has failed and it does not count on in `LOOKS` looks: it has died, or
else a link was cut. Looks are counted rather than seconds, because a look that is late,
when the store stalls or this machine swaps, says nothing of the other one.

Nothing here asks the network or a clock; `liveness` does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LEFT = b"left"
"""The count of a learner that has left the session."""

PROBE = 0.1
"""Seconds between two looks at a suspect."""

LOOKS = 20
"""The looks, so far apart at least, in which a suspect must have counted on."""

BEATS = 2
"""The beats that clear a suspect. One may have been on its way when it died."""


@dataclass
class Suspect:
    """A learner whose connection has failed.

    Attributes:
        why: what has happened, in words.
        count: its last count; None before the first look.
        looked: when it was looked at last.
        looks: the number of looks at it since the first, `PROBE` apart or more.
        beats: how often it has counted on since.
    """

    why: str
    count: bytes | None = None
    looked: float = 0.0
    looks: int = 0
    beats: int = 0


class Heartbeats:
    """The last count of each other learner, and since when it stands still.

    A learner counts as lost after `silence` seconds without a heartbeat. `suspects` has
    those by rank that may have died.
    """

    def __init__(self, silence: float) -> None:
        self.suspects: dict[int, Suspect] = {}
        self._silence = silence
        self._counts: dict[int, bytes] = {}
        self._since: dict[int, float] = {}

    def hear(self, peer: int, count: bytes, now: float) -> None:
        """Note the present count of a learner; each call is one look at a suspect."""
        count = bytes(count)
        if self._counts.get(peer) != count:
            self._counts[peer], self._since[peer] = count, now
        if (suspect := self.suspects.get(peer)) is not None:
            if suspect.count is None:
                suspect.looked = now
            else:
                suspect.beats += count != suspect.count
                # Whoever waits asks for looks as often as connections fail.
                if now - suspect.looked >= PROBE:
                    suspect.looks, suspect.looked = suspect.looks + 1, now
            suspect.count = count
            if suspect.beats >= BEATS or count == LEFT:
                self.clear(peer)

    def why_lost(self, peer: int, now: float, awaited: bool) -> str | None:
        """Return why a learner is lost, in words; None if it is not, or nobody knows.

        One that has left the session may be silent; but if it is `awaited` in the
        store, it is lost, because it will not come any more.
        """
        if peer not in self._counts:
            return None
        seconds = now - self._since[peer]
        if self._counts[peer] == LEFT:
            if not awaited or seconds <= self._silence:
                return None
            return f"learner {peer} has left the session {seconds:.0f} s ago"
        if seconds > self._silence:
            return (
                f"learner {peer} has been silent for {seconds:.0f} s: its process or "
                "its machine is gone or does not respond"
            )
        suspect = self.suspects.get(peer)
        if suspect is not None and suspect.looks > LOOKS:
            return f"learner {peer} has died or does not respond: {suspect.why}"
        return None

    def suspect(self, peers: Iterable[int], why: str) -> None:
        """Note that learners may have died, and why, in words."""
        for peer in peers:
            self.suspects.setdefault(peer, Suspect(why))

    def clear(self, peer: int) -> None:
        """Drop a suspicion, if there is one."""
        self.suspects.pop(peer, None)

    def forget(self, peer: int) -> None:
        """Forget a learner that has been replaced."""
        for known in (self._counts, self._since, self.suspects):
            known.pop(peer, None)

    def begin_anew(self, now: float) -> None:
        """Forget who was silent while this process was stopped itself."""
        self._since = dict.fromkeys(self._since, now)
        for peer in tuple(self.suspects):  # Other threads may add some.
            self.suspects[peer] = Suspect(self.suspects[peer].why)
