"""Notes of what a group has not finished, in a store of torch's."""

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.distributed.unfinished import Note, Unfinished


def groups(count: int) -> list[Unfinished]:
    store = HashStore()
    return [Unfinished(store, group, count, "work/0/") for group in range(count)]


@pytest.mark.parametrize(
    "note", [Note(0, 3), Note(2, 0, (7,), begun=True), Note(1, 12, (4, 5, 6))]
)
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    assert Note.parse(str(note)) == note


def test_what_a_dead_group_has_left_is_claimed_once() -> None:
    dead, one, other = groups(3)
    dead.note(0, [7, 8, 9], begun=True)
    first = one.claim({0: 0}, most=2)
    assert first is not None
    assert (first.items, first.begun) == ((7, 8), True)
    rest = other.claim({0: 0}, most=2)
    assert rest is not None
    assert (rest.items, rest.begun) == ((9,), False)
    assert one.claim({0: 0}, most=2) is None


def test_a_group_that_has_noted_nothing_has_left_nothing() -> None:
    _, one = groups(2)
    assert one.claim({0: 0}, most=2) is None


def test_the_note_of_a_replacement_is_not_claimed() -> None:
    """Who claims does not know yet that the dead one was replaced."""
    dead, one = groups(2)
    dead.note(1, [7])
    assert one.claim({0: 0}, most=2) is None
    assert one.claim({0: 1}, most=2) is not None


def test_of_two_that_claim_at_the_same_moment_one_gets_the_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead, one, other = groups(3)
    dead.note(0, [7])
    parse = Note.parse

    def late(text: str) -> Note:
        """Another group claims after this one has read the note."""
        monkeypatch.setattr(Note, "parse", parse)
        assert other.claim({0: 0}, most=1) is not None
        return parse(text)

    monkeypatch.setattr(Note, "parse", late)
    assert one.claim({0: 0}, most=1) is None
