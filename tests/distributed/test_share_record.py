"""The record of a share, as a text and after changes."""

import pytest

from espnet_distopt.distributed.share_record import First, Hold, Record

HOLDS = (Hold(3, 0, (7, 11, 15, 2)), Hold(0, 2, (4,), First.BEGUN))


@pytest.mark.parametrize(
    "record",
    [Record(), Record(3, 1, 2, change="0.2.14"), Record(5, 9, holds=HOLDS, change="x")],
)
@pytest.mark.parametrize("stride", [1, 4])
def test_a_record_is_read_as_it_was_written(record: Record, stride: int) -> None:
    text = record.text(stride)
    assert Record.parse(text, stride) == record
    assert Record.parse(text, stride).text(stride) == text


def test_neighbours_in_a_share_make_one_short_entry() -> None:
    items = tuple(range(1, 4001, 4))
    assert len(Hold(0, 0, items).text(4)) < 20


def test_each_holder_has_one_hold_and_none_if_it_is_empty() -> None:
    record = Record(holds=HOLDS).with_hold(Hold(3, 0, (2,)))
    assert record.of(3, 0) == Hold(3, 0, (2,))
    assert record.of(0, 2) == HOLDS[1]
    assert record.of(0, 1) is None  # one that was started before
    assert record.with_hold(Hold(3, 0, ())).holds == (HOLDS[1],)


def test_items_that_nobody_has_begun_are_held_and_not_counted() -> None:
    assert Record(5, 9, holds=HOLDS).begun == 14 - 4
    again = Hold(3, 0, (7, 11), First.AGAIN)
    assert Record(5, 9, holds=(again,)).begun == 14 - 1
    assert again.waiting == (7, 11)
    assert HOLDS[1].waiting == ()


def test_the_dead_hold_what_their_incarnation_had_taken() -> None:
    record = Record(holds=HOLDS)
    assert record.of_dead({0: 1, 3: -1}) is None
    assert record.of_dead({0: 2}) == HOLDS[1]
    assert record.of_dead({3: 4}) == HOLDS[0]
    assert HOLDS[1].left_by_dead().first is First.AGAIN
    assert HOLDS[0].left_by_dead() == HOLDS[0]
