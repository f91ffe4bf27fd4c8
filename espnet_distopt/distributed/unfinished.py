"""Items that a group of learners has taken and not finished, noted in the store.

An item that a group has taken is gone from all shares (`shares`). If the group dies,
nobody would train on it. So each group notes in the store what it has taken from others
and not begun, and if it is to be repeated, also the item that it is training on. At the
beginning of an epoch it notes the first item of its share, which is taken from the
beginning. When a group has died and the shares are empty, the others claim what it has
noted.

What could go wrong, and why it does not:

    Two groups may claim the same note. Each replaces the note that it has read by one
    with its own number, in one atomic operation. The store makes only the first change,
    so only one of them finds its own note there.

    A claimer may not know yet that the dead group was replaced, and find a note of the
    replacement, which lives. A note names the incarnation of its writer, so the claimer
    sees that the note is not of the dead one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espnet_distopt.distributed.liveness import Store


@dataclass(frozen=True)
class Note:
    """What a group has taken and not finished.

    Attributes:
        incarnation: how often the group's first learner had been started before.
        group: the group that has written this, after a claim the one that has claimed.
        items: the items, in the order in which the group trains on them.
        begun: whether the group has begun to train on the first one.
    """

    incarnation: int
    group: int
    items: tuple[int, ...] = ()
    begun: bool = False

    def __str__(self) -> str:
        numbers = ",".join(map(str, self.items))
        return f"{self.incarnation}:{self.group}:{int(self.begun)}:{numbers}"

    @classmethod
    def parse(cls, text: str) -> "Note":
        """Return the note that `str` has made this text of."""
        incarnation, group, begun, numbers = text.split(":")
        items = tuple(int(number) for number in numbers.split(",") if number)
        return cls(int(incarnation), int(group), items, begun == "1")


class Unfinished:
    """The notes of all groups of an epoch.

    Args:
        store: the store, which all groups reach.
        group: the number of this learner's group.
        groups: the number of groups.
        prefix: the beginning of all keys in the store.

    Attributes:
        keys: the keys of the notes in the store, one for each group.
    """

    def __init__(self, store: Store, group: int, groups: int, prefix: str) -> None:
        self._store, self._group = store, group
        self.keys = [f"{prefix}unfinished/{g}" for g in range(groups)]

    def note(self, incarnation: int, items: Sequence[int], begun: bool = False) -> None:
        """Note what this group has not finished. Cost: one operation of the store.

        Args:
            incarnation: of the group's first learner.
            items: the items.
            begun: whether the first one has been begun.
        """
        note = Note(incarnation, self._group, tuple(items), begun)
        self._store.set(self.keys[self._group], str(note))

    def adopt(self, group: int, items: Sequence[int]) -> None:
        """Note what a group has not finished that has died without a note of its own.

        Args:
            group: its number.
            items: the items.
        """
        self._store.compare_set(self.keys[group], "", str(Note(0, group, tuple(items))))

    def claim(self, dead: Mapping[int, int], most: int) -> Note | None:
        """Claim what a dead group had not finished; None if nothing is left.

        Cost: two operations of the store for each dead group, and one for a claim.

        Args:
            dead: group -> the greatest incarnation of its first learner that has died.
            most: the most items to take; the rest stays for later claims.
        """
        for group, incarnation in dead.items():
            note = self._claim(group, incarnation, most)
            if note is not None:
                return note
        return None

    def _claim(self, group: int, incarnation: int, most: int) -> Note | None:
        key = self.keys[group]
        while self._store.check([key]):
            text = bytes(self._store.get(key)).decode()
            note = Note.parse(text)
            if not note.items or note.incarnation > incarnation:
                break
            rest = str(Note(note.incarnation, self._group, note.items[most:]))
            if bytes(self._store.compare_set(key, text, rest)).decode() == rest:
                items = note.items[:most]
                return Note(note.incarnation, note.group, items, note.begun)
        return None
