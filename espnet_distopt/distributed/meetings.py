"""Meetings: points that all living learners reach, at very different times.

A wait in the store takes as long as it takes, whereas a collective that waits for its
`groups.TIMEOUT` destroys its group. So learners meet before a network operation that
one of them may reach long before a slow one.

The protocol is in `core.protocols`. When the members change, the heartbeat's thread of
any learner that waits looks whether all living ones have arrived.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from espnet_distopt.core.membership import Members
from espnet_distopt.core.protocols import arrival, decide_meeting, met, parse_met
from espnet_distopt.distributed.liveness import Store
from espnet_distopt.distributed.watch import Watch

OnChange = Callable[[Store], None]
"""What to do in the store when the members have changed."""


class Meetings:
    """Carries out meetings, on the training thread.

    Args:
        watch: the training thread's connection to the store.
        store: a connection for the heartbeat's thread, which looks on a change of the
            members whether waits have ended.
    """

    def __init__(self, watch: Watch, store: Store) -> None:
        self._watch, self._store = watch, store
        live = watch.liveness
        self._own = live.membership.name(live.rank)
        self._before: list[str] = []
        self._waits: list[OnChange] = []
        live.listeners.append(self._follow)

    def _follow(self) -> None:
        for wait in tuple(self._waits):
            wait(self._store)

    @contextmanager
    def following(self, follow: OnChange) -> Generator[None, None, None]:
        """Let the heartbeat's thread call `follow` on each change, inside."""
        self._waits.append(follow)
        try:
            yield
        finally:
            self._waits.remove(follow)

    def meet(
        self,
        name: str,
        what: str,
        ranks: Sequence[int] | None = None,
        closes: int = 0,
    ) -> Members:
        """Wait until the living learners have come; return those who have met.

        Cost: six operations of the store, one of which looks for N keys.

        Args:
            name: the name of this meeting, which no other one has.
            what: what is under way, in words, for messages.
            ranks: the learners that meet, this one among them; None means all.
            closes: the number of an epoch whose gossip has ended for all who come, so
                that nobody joins it once they have met.

        Raises:
            PeerLostError: the run has ended, or goes on without this learner.
        """
        live, store = self._watch.liveness, self._watch.store

        def follow(asked: Store) -> None:
            decide_meeting(asked, name, ranks, closes)

        with self._watch.asking(what):
            live.await_lease()
            store.set(arrival(name, self._own), "1")
            with self.following(follow):
                follow(store)
                members = parse_met(self._watch.wait_for(met(name), what))
            live.await_version(members.version)
            if ranks is None:
                self._sweep(name, members)
        return members

    def _sweep(self, name: str, members: Members) -> None:
        """Delete the keys of the meeting before the last: nobody reads them any more.

        Whoever has come to this meeting has left the last one, and whoever is in the
        last one has left the one before.
        """
        self._before.append(name)
        if len(self._before) > 2:
            old = self._before.pop(0)
            self._watch.store.delete_key(arrival(old, self._own))
            if self._watch.liveness.rank == members.ranks[0]:
                self._watch.store.delete_key(met(old))
