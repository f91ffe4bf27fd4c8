"""Records of a work queue: who holds which items, in a store that all learners share.

Learners that step together are a *group*, which takes items as one. A group *holds*
the items that it is to train on: at the beginning its share, one of equal parts of all
items. Each share has one record in the store, with all holds of its items. A record
changes by compare-and-set alone: a group writes what the record is to be, and what it
believes that the record is. The store makes the change only if that is so; otherwise
the group decides anew. There are two kinds of change, each one operation of the store:

    begin   The holder begins to train on the next item of its hold.
    take    A group that has finished all that it held takes items from the end of
            another one's hold. They become a hold of its own, in the same record.

A race for the last item of Ben's share, while he trains on item 1 and 3 and 5 wait:

    1. Anna has nothing left. She reads all records, and decides to take 5 from Ben.
    2. Before she does, Ben begins with 3. His record says that 5 alone waits.
    3. Anna asks to change the record in which 3 and 5 wait. The store refuses. She
       looks at the record that it returns, in which 5 still waits, and takes that.
    4. Ben asks to begin with 5. The store refuses. He finds that he does not hold 5 any
       more, and drops it; his loader has read it in vain.

What could go wrong, and why it does not:

    If a group died after it had taken items, nobody might train on them. But the
    operation that takes them also says who holds them, and others take what the dead
    hold. With a counter that hands out items, who has them would be noted by a second
    operation, and a death between the two would lose them.

    If a group was only stopped, and went on after the others have given it up, it might
    train on what they have taken from it. But to begin is a change of the record, too,
    which then says that others hold the item. A learner that is started in the place of
    a dead one is another holder: it has the number of its incarnation.

    If two groups asked for the same change of the same record, the store would return
    the same text to both, and each would believe that it had made the change. But who
    changes a record changes its own hold there, and nobody else does the same with it.

    If others took an item that a group has just taken and is still loading, and it took
    the item back while they load it, nobody might ever train on it. So nobody takes the
    first item of a hold from the living. For the same reason each group trains on one
    item at least.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from espnet_distopt.core.driver import SharedStore
from espnet_distopt.errors import PeerLostError

Runs = tuple[range, ...]
"""Items, in their order."""


def count(runs: Iterable[range]) -> int:
    """Return the number of items."""
    return sum(map(len, runs))


class Holder(NamedTuple):
    """A group in one of its lives.

    Attributes:
        group: the number of the group.
        incarnation: how often its first learner was started before.
    """

    group: int
    incarnation: int


@dataclass(frozen=True)
class Hold:
    """Items that a group is to train on.

    Attributes:
        holder: the group.
        runs: the items.
        begun: whether it has begun with the first of them.
    """

    holder: Holder
    runs: Runs = ()
    begun: bool = False

    @property
    def waiting(self) -> Runs:
        """The items with which nobody has begun."""
        if not self.begun:
            return self.runs
        first, *others = self.runs
        return (first[1:], *others) if len(first) > 1 else tuple(others)


@dataclass(frozen=True)
class Dead:
    """Which groups have died, and what becomes of the items that they had begun.

    Attributes:
        incarnations: group -> the greatest incarnation of it that has died.
        repeats: whether others train again on what a group was training on.
    """

    incarnations: Mapping[int, int]
    repeats: bool

    def left(self, hold: Hold) -> Runs:
        """Return what is to be done of a hold."""
        return hold.runs if self.repeats and self.has(hold) else hold.waiting

    def has(self, hold: Hold) -> bool:
        """Return whether the holder has died."""
        group, incarnation = hold.holder
        return incarnation <= self.incarnations.get(group, -1)

    def spare(self, hold: Hold) -> int:
        """Return how many of the last items of a hold others may take."""
        if self.has(hold):
            return count(self.left(hold))
        return max(0, count(hold.runs) - 1)


@dataclass(frozen=True)
class Record:
    """All holds of the items of one share.

    The methods that change it return the new record, or None if there is nothing to do.

    Attributes:
        holds: the holds that are not empty; a holder has one at most.
    """

    holds: tuple[Hold, ...] = ()

    @property
    def waiting(self) -> int:
        """The number of items with which nobody has begun."""
        return sum(count(hold.waiting) for hold in self.holds)

    def of(self, holder: Holder) -> Hold:
        """Return what one holder has, which may be nothing."""
        own = (hold for hold in self.holds if hold.holder == holder)
        return next(own, Hold(holder))

    def fullest(self, holder: Holder, dead: Dead) -> Hold:
        """Return the hold of another one that has most to spare."""
        others = (hold for hold in self.holds if hold.holder != holder)
        return max(others, key=dead.spare, default=Hold(holder))

    def begin(self, holder: Holder, item: int) -> "Record | None":
        """Begin with an item, unless others have taken it; the one before is done."""
        waiting = self.of(holder).waiting
        if not waiting or waiting[0][0] != item:
            return None
        return self.put(Hold(holder, waiting, begun=True))

    def finish(self, holder: Holder) -> "Record | None":
        """Note that the item with which the holder has begun is done."""
        hold = self.of(holder)
        return self.put(Hold(holder, hold.waiting)) if hold.begun else None

    def take(self, holder: Holder, most: int, dead: Dead) -> "Record | None":
        """Take at most so many items from the end of the fullest hold.

        The holder has none here.
        """
        victim = self.fullest(holder, dead)
        if not dead.spare(victim):
            return None
        *others, last = victim.runs
        number = min(most, dead.spare(victim), len(last))
        rest = (*others, last[:-number]) if number < len(last) else tuple(others)
        taken = Hold(holder, (last[-number:],))
        return self.put(replace(victim, runs=rest)).put(taken)

    def put(self, hold: Hold) -> "Record":
        """Return the record with this in the place of what its holder had."""
        others = tuple(each for each in self.holds if each.holder != hold.holder)
        return Record((*others, hold) if hold.runs else others)

    def text(self) -> str:
        """Return the record as a text."""
        return json.dumps([[*h.holder, h.begun, to_lists(h.runs)] for h in self.holds])

    @classmethod
    def parse(cls, text: bytes) -> "Record":
        """Return the record whose text this is."""
        return cls(
            tuple(
                Hold(Holder(group, incarnation), from_lists(runs), begun)
                for group, incarnation, begun, runs in json.loads(bytes(text))
            )
        )


def to_lists(runs: Runs) -> list[list[int]]:
    """Return the runs as lists of numbers."""
    return [[run.start, run.stop, run.step] for run in runs]


def from_lists(runs: Sequence[Sequence[int]]) -> Runs:
    """Return the runs of which `to_lists` has made these lists."""
    return tuple(range(*run) for run in runs)


class Records:
    """The records of all shares of a queue, as one group reads and changes them.

    A change costs one operation of the store, one more each time that others have
    changed the record since this group has last seen it, and one that counts the items
    with which somebody has begun, if there are more or fewer of them. What changes a
    record raises PeerLostError if the others have deleted it.

    Args:
        store: the store.
        holder: the group.
        groups: number of groups.
        prefix: the beginning of all keys of the queue.
        repeats: as for `Dead`.

    Attributes:
        keys: the keys in the store.
        counter: the key that has the number of items with which somebody has begun.
        started: that number, as last heard.
    """

    def __init__(
        self,
        store: SharedStore,
        holder: Holder,
        groups: int,
        prefix: str,
        repeats: bool = False,
    ) -> None:
        self._store, self._holder, self._repeats = store, holder, repeats
        self._shares = [f"{prefix}share/{group}" for group in range(groups)]
        self.counter = f"{prefix}started"
        self.keys = [*self._shares, self.counter]
        # Of equally long holds each group prefers another one, so that few collide.
        self._order = [(holder.group + 1 + other) % groups for other in range(groups)]
        self._seen = [Record()] * groups
        self._place = holder.group  # The record in which this group holds items.
        self.started = 0

    def open(self, runs: Runs, started: int) -> None:
        """Write what this group holds at the beginning. All do so before any takes.

        Args:
            runs: the items.
            started: number of items of the queue that were begun before.
        """
        self._write(self._holder, runs)
        self._store.compare_set(self.counter, "", str(started))
        self.started = started

    def adopt(self, group: int, runs: Runs) -> None:
        """Write what a group that has died would hold, unless another one has."""
        self._write(Holder(group, 0), runs)

    def _write(self, holder: Holder, runs: Runs) -> None:
        text = Record().put(Hold(holder, runs)).text()
        found = self._store.compare_set(self._shares[holder.group], "", text)
        self._seen[holder.group] = Record.parse(found)

    def begin(self, item: int) -> bool:
        """Begin with the next item that this group holds; False if others have it."""
        begun = self._change(
            self._place, lambda record: record.begin(self._holder, item)
        )
        return begun is not None

    def take(self, dead: Mapping[int, int]) -> tuple[range, bool]:
        """Take items that others hold, when this group has nothing left.

        It takes half of what is left for each group on average, so that it seldom has
        to take again. That may be too much for a slow one: then others take of it.

        Args:
            dead: as for `Dead`.

        Returns:
            The items, and whether one that has died had begun with the first of them.
        """
        holder, lost = self._holder, Dead(dead, self._repeats)
        self._change(self._place, lambda record: record.finish(holder))
        self.read()
        spare = [lost.spare(each.fullest(holder, lost)) for each in self._seen]
        while spare[place := max(self._order, key=spare.__getitem__)]:
            most = max(1, sum(spare) // (2 * len(spare)))

            def taken(record: Record, most: int = most) -> Record | None:
                return record.take(holder, most, lost)

            begun = self._change(place, taken)
            if begun is not None:
                self._place = place
                return self._seen[place].of(holder).runs[0], begun < 0
            spare[place] = 0
        return range(0), False

    def put_back(self, items: Sequence[int]) -> None:
        """Hold again the items that this group has begun last, in their order."""
        runs = tuple(range(item, item + 1) for item in items)

        def waiting_again(record: Record) -> Record | None:
            rest = record.of(self._holder).waiting
            return record.put(Hold(self._holder, (*runs, *rest))) if runs else None

        self._change(self._place, waiting_again)

    def read(self) -> int:
        """Read all records; return the number of items with which nobody has begun."""
        self._seen = list(map(Record.parse, self._store.multi_get(self._shares)))
        return sum(record.waiting for record in self._seen)

    def left(self, dead: Mapping[int, int]) -> list[Runs]:
        """Return what each group is to do, as last read; the living do nothing now."""
        lost = Dead(dead, self._repeats)
        left: list[Runs] = [()] * len(self._shares)
        for hold in (hold for record in self._seen for hold in record.holds):
            left[hold.holder.group] += lost.left(hold)
        return left

    def _change(
        self, place: int, change: Callable[[Record], Record | None]
    ) -> int | None:
        """Change a record; return how many more items are begun then.

        `change` takes what the record is and returns what it is to be, or None. It is
        called again if others were faster.

        Returns:
            The number: -1 if an item is to be repeated. None if nothing was changed.
        """
        while (changed := change(self._seen[place])) is not None:
            before = self._seen[place]
            texts = before.text(), changed.text()
            found = Record.parse(self._store.compare_set(self._shares[place], *texts))
            if found == before:
                # Of a key that it does not have, a store returns what was expected.
                reason = "the others have given this learner up; start it again"
                raise PeerLostError(f"taking from a queue has failed: {reason}", reason)
            self._seen[place] = found
            if found == changed:
                begun = before.waiting - changed.waiting
                if begun:
                    self.started = self._store.add(self.counter, begun)
                return begun
        return None
