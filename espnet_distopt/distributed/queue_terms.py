"""What must be equal on the learners that open one work queue, compared in the store.

Nobody waits for anybody else here: each learner notes its own value, or compares it
with the one that is noted already. The barrier with which learners open a queue comes
after all of these notes, so that `differences` then says the same to all.
"""

from collections.abc import Sequence
from typing import Any

from espnet_distopt.errors import InputError

_MESSAGES = {
    "items": "learner {} has opened a work queue of {} items, and learner {} the "
    "same one of {}: give all learners the same number",
    "ahead": "learner {} has opened a work queue with ahead = {}, and learner {}, "
    "which steps with it, with {}: give both the same",
    "state": "learner {0} has opened a work queue with another state than learner "
    "{2}: resume all from the same save, or none",
}
"""For each term: the message about two learners that differ."""


class QueueTerms:
    """The terms of one work queue.

    Args:
        store: the rendezvous store.
        rank: this learner.
        groups: number of groups of learners that step together.
        prefix: prefix of the queue's keys.
    """

    def __init__(self, store: Any, rank: int, groups: int, prefix: str) -> None:
        self._store, self._rank, self._prefix = store, rank, prefix
        self._differs = prefix + "differs"
        self._ahead = [f"ahead/{group}" for group in range(groups)]

    @property
    def keys(self) -> Sequence[str]:
        """The keys in the store."""
        names = ["items", "state", *self._ahead]
        return [self._differs, *(self._prefix + name for name in names)]

    def note(self, items: int, state: str, ahead: int, group: int) -> None:
        """Note this learner's terms, or that another one has others.

        Args:
            items: number of items of the queue.
            state: what the queue goes on with.
            ahead: the most items that this learner's group takes from others at a time.
            group: the number of its group.
        """
        for name, value in (
            ("items", items),
            ("state", state),
            (self._ahead[group], ahead),
        ):
            if message := self._compare(name, value):
                self._store.compare_set(self._differs, "", message)

    def differences(self) -> str:
        """Return what a learner has noted of a difference; "" if none has."""
        if not self._store.check([self._differs]):
            return ""
        return str(self._store.get(self._differs).decode())

    def check(self, items: int, ahead: int, group: int) -> None:
        """Compare the terms of a learner that joins a queue with the others'.

        Raises:
            InputError: they differ. The others go on.
        """
        for name, value in (("items", items), (self._ahead[group], ahead)):
            if message := self._compare(name, value):
                raise InputError(message)

    def _compare(self, name: str, value: object) -> str:
        """Note a value, or return the message about another one that is noted."""
        own, key = f"{self._rank}:{value}", self._prefix + name
        first, _, said = self._store.compare_set(key, "", own).decode().partition(":")
        if said == str(value):
            return ""
        term, _, _ = name.partition("/")
        return _MESSAGES[term].format(self._rank, value, first, said)
