"""The terms of a work queue, compared in a store without waiting."""

import pytest
from torch.distributed import HashStore

from espnet_distopt.distributed.queue_terms import QueueTerms
from espnet_distopt.errors import InputError


def terms(size: int, groups: int | None = None) -> list[QueueTerms]:
    store = HashStore()
    return [QueueTerms(store, rank, groups or size, "queue/") for rank in range(size)]


def test_equal_terms_do_not_differ() -> None:
    found = terms(3)
    for group, each in enumerate(found):
        each.note(items=6, state="0 [0, 0, 0]", ahead=2, group=group)
    assert [each.differences() for each in found] == [""] * 3
    found[2].check(items=6, ahead=2, group=2)


@pytest.mark.parametrize(
    ("items", "state", "ahead", "words"),
    [
        (7, "0", 2, "learner 1 has opened a work queue of 7 items, and learner 0 the"),
        (
            6,
            "3",
            2,
            "learner 1 has opened a work queue with another state than learner 0",
        ),
        (6, "0", 4, "learner 1 has opened a work queue with ahead = 4, and learner 0"),
    ],
)
def test_all_hear_of_the_first_difference(
    items: int, state: str, ahead: int, words: str
) -> None:
    one, other = terms(2, groups=1)
    one.note(6, "0", 2, group=0)
    other.note(items, state, ahead, group=0)
    assert one.differences() == other.differences()
    assert one.differences().startswith(words)


def test_groups_may_read_ahead_by_other_numbers() -> None:
    one, other = terms(2)
    one.note(6, "0", 2, group=0)
    other.note(6, "0", 4, group=1)
    assert one.differences() == ""


def test_a_learner_that_joins_is_refused_alone() -> None:
    one, other = terms(2, groups=1)
    one.note(6, "0", 2, group=0)
    with pytest.raises(InputError, match="learner 1 has opened a work queue of 9"):
        other.check(9, 2, group=0)
    assert one.differences() == ""


def test_the_keys_are_all_that_the_store_has() -> None:
    store = HashStore()
    one = QueueTerms(store, 0, 1, "queue/")
    one.note(6, "0", 2, group=0)
    QueueTerms(store, 1, 1, "queue/").note(7, "1", 3, group=0)
    for key in one.keys:
        assert store.delete_key(key)
    assert store.num_keys() == 0
