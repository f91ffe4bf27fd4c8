"""Records in a store of torch's: of two changes at the same moment one is made."""

from dataclasses import replace

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.distributed.share_record import Record
from espnet_distopt.distributed.share_store import GivenUp, ShareStore


def more(record: Record) -> Record | None:
    return replace(record, front=record.front + 1) if record.front < 3 else None


def writers(*names: str) -> list[ShareStore]:
    store = HashStore()
    return [ShareStore(store, 2, "work/0/", name) for name in names]


def test_who_begins_second_finds_the_first_record() -> None:
    one, other = writers("0.0", "1.0")
    assert one.begin(1, Record(front=1))
    assert not other.begin(1, Record(front=2))
    assert other.seen[1] == Record(front=1)


def test_two_that_ask_for_the_same_change_are_told_which_one_was_made() -> None:
    one, other = writers("0.0", "0.1")  # a learner that was stopped and its replacement
    for each in (one, other):
        each.begin(0, Record())
    asked: list[Record] = []

    def counted(record: Record) -> Record | None:
        asked.append(record)
        return more(record)

    assert one.change(0, more) == Record(1, change="0.0.1")
    changed = other.change(0, counted)
    assert changed is not None and changed.front == 2
    assert [record.front for record in asked] == [0, 1]


def test_a_change_may_find_that_nothing_is_to_be_done() -> None:
    one, other = writers("0.0", "1.0")
    for each in (one, other):
        each.begin(0, Record(front=2))
    assert one.change(0, more) is not None
    assert other.change(0, more) is None
    assert other.seen[0].front == 3


def test_a_record_that_the_others_have_deleted_is_not_waited_for() -> None:
    [one] = writers("0.0")
    one.begin(0, Record())
    one._store.delete_key(one.keys[0])
    with pytest.raises(GivenUp):
        one.change(0, more)
