"""Learner 0 decides whether a run may start, and all others do as it says."""

import contextlib
import io
import os
import time

import pytest

from espnet_distopt.distributed.admission import start_together
from espnet_distopt.distributed.launch_variables import INCARNATION
from espnet_distopt.errors import InputError
from tests.processes import launch


def start(
    refuses: int | None = None, other: int | None = None, late: tuple[float, ...] = ()
) -> tuple[str, str]:
    """Return how a start has ended for this learner, and what it has printed.

    Args:
        refuses: the learner that refuses; learner 0 does so when it decides.
        other: the learner whose machine has something else.
        late: seconds that each learner comes late.
    """
    import torch.distributed as dist

    rank = dist.get_rank()
    time.sleep(late[rank] if late else 0)

    def examine() -> str:
        if rank == refuses:
            raise InputError("no tokens here")
        return "other tokens" if rank == other else "tokens"

    def decide() -> None:
        if refuses == 0:
            raise InputError("another run trains there")
        calls.append(rank)

    calls: list[int] = []
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        try:
            start_together(examine, decide)
            how = "runs"
        except SystemExit as end:
            how = f"exit {end.code}"
    assert calls == ([] if rank or refuses == 0 else [0])
    return how, printed.getvalue()


@pytest.mark.parametrize("late", [(), (0.6, 0, 0), (0, 0.6, 0.3)])
@pytest.mark.parametrize("hosted", [False, True])
def test_all_learners_get_the_same_answer(
    late: tuple[float, ...], hosted: bool
) -> None:
    given = {"hosted": hosted}
    assert launch(3, start, None, None, late, **given) == [("runs", "")] * 3
    said = "error: another run trains there\n"
    found = launch(3, start, 0, None, late, **given)
    assert found == [("exit 2", said), ("exit 2", ""), ("exit 2", "")]


@pytest.mark.parametrize("late", [(), (0.6, 0, 0), (0, 0.6, 0)])
def test_a_learner_that_refuses_alone_is_heard(late: tuple[float, ...]) -> None:
    first, second, third = launch(3, start, 1, None, late)
    assert second == ("exit 2", "error: no tokens here\n")
    assert first[0] == "exit 2" and third == ("exit 2", "")
    assert first[1].startswith("error: learner 1 on ")
    assert first[1].endswith(": no tokens here\n")


def test_machines_with_other_tokens_are_refused() -> None:
    first, second = launch(2, start, None, 1)
    assert second == ("exit 2", "")
    assert first == (
        "exit 2",
        "error: learner 1 has other tokens, and learner 0 has tokens: all machines "
        "need the same\n",
    )


def start_again(refuses: int | None) -> list[str]:
    """Start; then once more, as a process that replaces the learner does."""
    import torch.distributed as dist

    def decide() -> None:
        calls.append("decides")
        if refuses == 0:
            raise InputError("no")

    calls: list[str] = []
    for number in range(2):
        os.environ[INCARNATION] = str(number)
        try:
            start_together(lambda: "", decide)
            calls.append("runs")
        except SystemExit:
            calls.append("ends")
        dist.barrier()
    return calls


def test_a_learner_that_is_started_again_gets_the_same_answer() -> None:
    assert launch(2, start_again, None) == [["decides", "runs", "runs"], ["runs"] * 2]
    assert launch(2, start_again, 0) == [["decides", "ends", "ends"], ["ends"] * 2]


def fail() -> str:
    import torch.distributed as dist

    def decide() -> None:
        raise KeyError("a bug")

    try:
        start_together(str, decide)
    except BaseException as error:
        return f"{dist.get_rank()} {error!r}"
    return "runs"


def test_a_failure_of_learner_0_ends_all() -> None:
    assert launch(2, fail) == ["0 KeyError('a bug')", "1 SystemExit(2)"]


def test_a_learner_alone_decides_for_itself() -> None:
    with pytest.raises(InputError, match="taken"):
        start_together(str, _taken)


def _taken() -> None:
    raise InputError("taken")
