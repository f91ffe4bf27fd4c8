"""Which nodes node 0 waits for at the end."""

from espnet_distopt.launch.verdict import Ends
from espnet_distopt.launch.plan import Plan
from espnet_distopt.launch.verdict import Life


def ends() -> Ends:
    """Those of three nodes, of which node 0 has ended."""
    found = Ends(Plan((1, 2, 1), 0, "127.0.0.1", 1, "a"))
    assert not found.are_all(none_comes=True)
    found.note(0, [Life(0, "a", 0)])
    return found


def test_a_node_that_has_not_come_is_awaited_unless_none_comes_any_more() -> None:
    found = ends()
    assert not found.are_all(none_comes=False)
    assert found.are_all(none_comes=True)
    found.note_look(1)
    assert not found.are_all(none_comes=True)
    found.note(1, [Life(1, "b", 0), Life(2, "b", 0)])
    assert found.are_all(none_comes=True)
    assert not found.are_all(none_comes=False)


def test_a_node_that_comes_back_is_not_lost() -> None:
    found = ends()
    assert not found.note_look(1)
    found.note(2, [Life(3, "c", 0)])
    assert found.lose(1).rank == 1
    assert [life.lost for life in found.lives] == [False, True, True, False]
    assert found.are_all(none_comes=False)
    assert found.note_look(1)
    assert not found.are_all(none_comes=True)
    assert [life.rank for life in found.lives] == [0, 3]
    assert not found.note_look(1)
