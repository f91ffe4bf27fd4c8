"""What is left of a queue, saved and read again."""

from espnet_distopt.distributed.queue_left import Left, save
from espnet_distopt.distributed.share_record import First, Hold, Record
from espnet_distopt.distributed.shares import MOST_ITEMS

NEW, AGAIN, BEGUN = First


def of_own(group: int, state: dict[str, object]) -> Left:
    """Return what is left, of a save of another group."""
    other = {"started": 0, "held": [], "group": None, "unfinished": [[]], "again": []}
    return Left.saved({**other, **state}, group)


def test_a_queue_that_begins_gives_each_group_its_first_item() -> None:
    left = Left.everything(3)
    assert left.record(1, range(1, 9, 3)) == Record(1, holds=(Hold(1, 0, (1,)),))
    assert left.record(1, range(1, 1, 3)) == Record()


def test_what_was_taken_is_taken_after_a_save() -> None:
    records = [Record(3, 1), Record(2, 4)]
    left = of_own(0, save(records, {}))
    assert left.record(0, range(0, 12, 2)) == records[0]
    assert left.record(1, range(1, 12, 2), 2) == Record(2, 4, owner=2)


def test_the_counts_of_the_largest_queue_fit_into_a_save() -> None:
    whole = Record(1, MOST_ITEMS - 1)
    taken = save([whole], {})["taken"]
    assert max(taken) < 1 << 63
    assert of_own(0, {"taken": taken}).record(0, range(MOST_ITEMS)) == whole


def test_a_save_names_what_all_groups_hold_in_any_record() -> None:
    """Group 1 is dead, and was training on 9; group 2 has finished 5."""
    records = [
        Record(3, 2, holds=(Hold(1, 0, (9, 6), BEGUN),)),
        Record(2, 0),
        Record(2, 1, holds=(Hold(2, 0, (5, 8), BEGUN), Hold(0, 0, (11,), NEW))),
    ]
    state = save(records, {1: 0})
    assert state["unfinished"] == [[11], [9, 6], [8]]
    assert state["again"] == [9]
    assert state["started"] == 10 - 3  # 6, 8 and 11 are not begun
    resumed = of_own(0, {**state, "group": 2, "held": [8]})
    record = resumed.record(1, range(1, 12, 3))
    assert record.holds == (Hold(1, 0, (9, 6), AGAIN),)
    assert resumed.record(0, range(0, 12, 3)).holds == (Hold(0, 0, (11,)),)


def test_the_own_save_says_what_a_group_held_itself() -> None:
    """A loop has read item 4 and has not trained on it."""
    state = {"taken": [3, 2], "unfinished": [[6], [3]], "held": [4, 6], "group": 0}
    assert of_own(0, state).held == [[4, 6], [3]]
    assert of_own(1, state).held == [[6], [3]]
