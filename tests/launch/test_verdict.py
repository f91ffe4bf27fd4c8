"""How a run has ended, from the ends of its learners."""

import pytest

from espnet_distopt.launch.plan import Plan
from espnet_distopt.launch.verdict import Ends, Life, Verdict, judge

WELL, STOPPED = Life(0, "a", 0), Life(1, "a", 75)
LOST, LATER = Life(2, "b", 137, lost=True, ended=1), Life(3, "b", 1, lost=True, ended=2)
AGAIN = Life(4, "b", 0, restarts=2)
TOLD = "the run was told to stop, and "
SOME = "though not with all learners"


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ([WELL, WELL], Verdict(0)),
        ([STOPPED, STOPPED], Verdict(75)),
        ([WELL, STOPPED], Verdict(75)),
        (
            [WELL, LOST, AGAIN],
            Verdict(
                0,
                f"the run ended well, {SOME}: lost: learner 2 (b); "
                "replaced: learner 4 (2 times)",
            ),
        ),
        (
            [STOPPED, LOST],
            Verdict(
                75,
                f"the run was stopped, and its state is saved, {SOME}: "
                "lost: learner 2 (b)",
            ),
        ),
        (
            [LATER, LOST],
            Verdict(137, "the run failed: learner 2 on b was killed by SIGKILL"),
        ),
        (  # It was told before it listened.
            [STOPPED, Life(0, "a", 138)],
            Verdict(138, f"{TOLD}learner 0 on a was killed by SIGUSR1"),
        ),
        (  # It did not end in time.
            [STOPPED, Life(0, "a", 137)],
            Verdict(137, f"{TOLD}learner 0 on a was killed by SIGKILL"),
        ),
        (  # It could not save.
            [STOPPED, Life(0, "a", 1), WELL],
            Verdict(1, f"{TOLD}learner 0 on a ended with status 1"),
        ),
    ],
)
def test_judge(lives: list[Life], expected: Verdict) -> None:
    assert judge(lives) == expected


def test_what_ended_the_run_comes_first() -> None:
    failure = Life(1, "a", 9)
    lives = [failure, STOPPED, Life(2, "b", 137)]
    assert judge(lives, failure).status == 9
    assert judge(lives, failure, interrupted=True).status == 130


def test_ctrl_c_says_whether_all_have_saved() -> None:
    saved = Verdict(130, "stopped by Ctrl-C, and its state is saved")
    lost = Life(1, "a", 137, lost=True)
    assert judge([STOPPED, STOPPED, lost], interrupted=True) == saved
    killed = Life(1, "a", 137)
    assert judge([STOPPED, killed], interrupted=True).text == "stopped by Ctrl-C"


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
