"""What this process has heard of the heartbeats of others, and whom it suspects.

Nothing here asks the network; `lookout` does, and decides who is lost.
"""

from collections.abc import Iterable

from espnet_distopt.distributed.farewell import LEFT, describe
from espnet_distopt.distributed.suspects import Suspect


class Heartbeats:
    """The last count of each other learner, and since when it stands still.

    Attributes:
        suspects: rank -> a learner that may have died, because a connection to it has
            failed.
    """

    def __init__(self) -> None:
        self.suspects: dict[int, Suspect] = {}
        self._counts: dict[int, bytes] = {}
        self._since: dict[int, float] = {}

    @property
    def heard(self) -> tuple[int, ...]:
        """The learners of which a count is known."""
        return tuple(self._since)

    def hear(self, peer: int, count: bytes, now: float) -> None:
        """Note the present count of a learner."""
        if self._counts.get(peer) != count:
            self._counts[peer], self._since[peer] = bytes(count), now

    def forget(self, peer: int) -> None:
        """Forget a learner that has been replaced."""
        for known in (self._counts, self._since, self.suspects):
            known.pop(peer, None)

    def begin_anew(self, now: float) -> None:
        """Forget who was silent while this process was stopped itself."""
        self._since = dict.fromkeys(self._since, now)
        for peer in tuple(self.suspects):  # Other threads may add some.
            self.suspects[peer] = Suspect(self.suspects[peer].why)

    def silence(self, peer: int, now: float) -> float:
        """Return for how many seconds the count of a learner stands still."""
        return now - self._since[peer]

    def has_left(self, peer: int) -> bool:
        """Return whether a learner has left the session in an orderly way."""
        return self._counts.get(peer) == LEFT

    def in_words(self, peer: int, now: float) -> str:
        """Return in words that a learner is silent."""
        return describe(peer, self._counts[peer], self.silence(peer, now))

    def suspect(self, peers: Iterable[int], why: str) -> None:
        """Note that learners may have died.

        Args:
            peers: their ranks.
            why: what has happened, in words.
        """
        for peer in peers:
            self.suspects.setdefault(peer, Suspect(why))

    def is_cleared(self, peer: int, now: float) -> bool:
        """Return whether a suspect has left or counts on, and then drop the suspicion.

        Each call is one look at the suspect.

        Args:
            peer: its rank.
            now: when its count was read.
        """
        suspect = self.suspects[peer]
        cleared = self.has_left(peer) or suspect.cleared(self._counts[peer], now)
        if cleared:
            del self.suspects[peer]
        return cleared
