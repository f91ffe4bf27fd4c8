"""The records of all shares of a work queue in the store, which change one at a time.

A record changes by compare-and-set alone: a learner writes what the record is to be,
together with what it believes that the record is. The store writes it only if that is
so, and returns what the record is from then on. If it was otherwise, the learner
decides anew.

If two learners asked for the same change at the same moment, the store would return the
same text to both, and each would believe that it had made the change. But each change
is named by its writer and a number, so no two texts are equal.
"""

from collections.abc import Callable
from dataclasses import replace

from espnet_distopt.distributed.liveness import Store
from espnet_distopt.distributed.share_record import Record
from espnet_distopt.errors import PeerLostError

Change = Callable[[Record], Record | None]
"""Returns what a record is to be; None if it is to stay."""


class GivenUp(PeerLostError):
    """The others have given this learner up, and do its items of the queue."""

    def __init__(self) -> None:
        reason = "the others have given this learner up; start it again"
        super().__init__(f"taking from the work queue has failed: {reason}", reason)


class ShareStore:
    """The records of all shares.

    Args:
        store: the store, which all groups reach.
        shares: number of shares.
        prefix: the beginning of all keys in the store.
        writer: names this learner as no other one is named.

    Attributes:
        keys: the keys of the records in the store, one for each share.
        seen: the records, as this learner has last seen them.
    """

    def __init__(self, store: Store, shares: int, prefix: str, writer: str) -> None:
        self._store, self._shares, self._writer = store, shares, writer
        self.keys = [f"{prefix}share/{number}" for number in range(shares)]
        self.seen = [Record() for _ in range(shares)]
        self._changes = 0

    def read(self) -> None:
        """Read all records. Cost: one operation of the store, of G short texts."""
        self.seen = [self._parse(text) for text in self._store.multi_get(self.keys)]

    def begin(self, number: int, record: Record) -> bool:
        """Write the first record of a share; return False if there is another one.

        Args:
            number: that of the share.
            record: the record.
        """
        text = record.text(self._shares)
        self.seen[number] = self._parse(
            self._store.compare_set(self.keys[number], "", text)
        )
        return self.seen[number] == record

    def change(self, number: int, change: Change) -> Record | None:
        """Change a record; return what it is then, or None if it is to stay.

        Cost: one operation of the store, and one more each time that others have
        changed the record since this learner has last seen it.

        Args:
            number: that of the share.
            change: returns what the record is to be, of what it is; it is called again
                if others were faster.

        Raises:
            GivenUp: the others have left the queue, and there is no such record now.
        """
        while (wanted := change(self.seen[number])) is not None:
            self._changes += 1
            wanted = replace(wanted, change=f"{self._writer}.{self._changes}")
            texts = [r.text(self._shares) for r in (self.seen[number], wanted)]
            found = self._parse(self._store.compare_set(self.keys[number], *texts))
            if found == self.seen[number]:
                # Of a key that it does not have, a store returns what was expected.
                raise GivenUp
            self.seen[number] = found
            if found == wanted:
                return found
        return None

    def _parse(self, text: bytes) -> Record:
        return Record.parse(bytes(text).decode(), self._shares)
