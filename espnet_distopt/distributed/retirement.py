"""The end of an epoch's gossip: passive learners answer until all active ones retire.

An active learner that will invite nobody any more writes so to the store. Whoever sees
that all living active ones have done so, on retiring or when the members change, writes
that the gossip of the epoch is over. Nobody counts, because a learner may die at any
moment, before or after it has retired. From then on no replacement joins the epoch.
"""

import contextlib
import threading
from collections.abc import Sequence

from espnet_distopt.distributed import keys
from espnet_distopt.distributed.channel import WakeUp
from espnet_distopt.distributed.membership import end_epoch, read_members
from espnet_distopt.distributed.watch import Watch
from espnet_distopt.errors import PeerLostError

WHAT = "the end of the gossip"


class Retirement:
    """The retirement of the active learners of one epoch.

    Args:
        epoch: the number of the gossip's epoch.
        watch: the gossip thread's connection to the store.
        waiting: a second connection, on which a thread of its own waits for the end.
        wakeup: ends the gossip thread's wait when the gossip is over.
    """

    def __init__(
        self, epoch: int, watch: Watch, waiting: Watch, wakeup: WakeUp
    ) -> None:
        self._epoch = epoch
        self._watch = watch
        self._waiting = waiting
        self._wakeup = wakeup
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._version = -1

    def retire(self, actives: Sequence[int]) -> None:
        """Say that this learner will invite nobody any more.

        Args:
            actives: the ranks that are active in this epoch, dead ones included.
        """
        with self._watch.asking(WHAT):
            live = self._watch.liveness
            own = live.membership.name(live.rank)
            self._watch.store.set(keys.retired(self._epoch, own), "1")
            self._watch.store.delete_key(keys.retired(self._epoch - 2, own))
            self._end_if_all_have(actives)

    def is_over(self, actives: Sequence[int]) -> bool:
        """Return whether nobody will invite this learner any more in this epoch.

        A change of this is announced by a wake-up.

        Args:
            actives: the ranks that are active in this epoch, dead ones included.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._wait, name="distopt-retirement", daemon=True
            )
            self._thread.start()
        version = self._watch.liveness.members.version
        if version != self._version and not self._over.is_set():
            self._version = version
            with self._watch.asking(WHAT):
                if self._end_if_all_have(actives):
                    self._over.set()
        return self._over.is_set()

    def _end_if_all_have(self, actives: Sequence[int]) -> bool:
        # The store's members are newer than this process's. So of a death and of a
        # retirement at the same time, whoever comes second sees the first.
        # Nobody joins between this look and the end (`end_epoch`).
        store, ended = self._watch.store, False
        while not ended:
            entry = read_members(store)
            awaited = [
                keys.retired(self._epoch, keys.learner(*each))
                for each in entry.living.items()
                if each[0] in actives
            ]
            if awaited and not store.check(awaited):
                return False
            ended = end_epoch(store, entry, self._epoch)
        store.set(keys.gossip_over(self._epoch), "1")
        store.delete_key(keys.gossip_over(self._epoch - 2))
        return True

    def _wait(self) -> None:
        # If the run ends, the gossip thread notices it by itself.
        with contextlib.suppress(PeerLostError):
            self._waiting.wait_for(keys.gossip_over(self._epoch), WHAT)
            self._over.set()
            self._wakeup.wake()

    def close(self) -> None:
        """Wait until the thread has ended; the gossip is over."""
        if self._thread is not None:
            self._thread.join()
