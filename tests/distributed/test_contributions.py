"""Averages in slices, which are repeated from the slice where they broke."""

import itertools
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from processes import launch
from torch import Tensor

from espnet_distopt.core.effects import AllGather, AllReduceMean, Broadcast
from espnet_distopt.distributed import contributions
from espnet_distopt.distributed.collectives import Collectives, InFlight
from espnet_distopt.distributed.contributions import Contribution, contribution
from tests.distributed.forgotten import Forgotten
from tests.sessions import session

SLICES = 5
ELEMENTS = 4
"""Elements of a slice; the last slice has one less."""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_smaller(monkeypatch.setattr)


def slice_smaller(set_to: Any = setattr) -> None:
    set_to(contributions, "SLICE", 8 * ELEMENTS)
    set_to(contributions, "SHARE", 8)


def numbers() -> Tensor:
    return torch.arange(SLICES * ELEMENTS - 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("effect", "parts"),
    [
        (AllReduceMean(numbers()), SLICES),
        (AllReduceMean(numbers().view(1, -1)), SLICES),
        (AllReduceMean(numbers()[:ELEMENTS]), 1),
        (AllReduceMean(numbers(), (0, 1)), 1),
        (AllReduceMean(numbers(), kept=numbers()), 1),
        (AllReduceMean(torch.zeros(5, 5).t()[:4]), 1),
        (Broadcast(numbers()), 1),
        (AllGather(numbers()), 1),
    ],
)
def test_large_averages_of_all_are_sliced(effect: Any, parts: int) -> None:
    assert contribution(effect, 4).parts == parts


@pytest.mark.parametrize(("places", "parts"), [(2, 5), (4, 5), (10, 2), (19, 1)])
def test_slices_grow_with_the_number_of_learners(places: int, parts: int) -> None:
    assert contribution(AllReduceMean(numbers()), places).parts == parts


@pytest.mark.parametrize("effect", [AllReduceMean(numbers()), Broadcast(numbers())])
def test_parts_make_the_whole(effect: Any) -> None:
    own = contribution(effect, 4)
    for _ in range(own.parts):
        own.next_part().tensor.add_(1)
        own.completed += 1
    torch.testing.assert_close(effect.tensor, numbers() + 1, rtol=0, atol=0)


@pytest.mark.parametrize("begun", range(1, SLICES + 1))
@pytest.mark.parametrize("back", [0, 1, 2])
def test_the_last_two_slices_can_be_contributed_again(begun: int, back: int) -> None:
    tensor = numbers()
    own = contribution(AllReduceMean(tensor), 4)
    for number in range(begun):
        own.completed = number
        own.next_part().tensor.fill_(-1)
    left = max(0, begun - back)
    own.rewind(left)
    assert own.completed == left
    expected = numbers()
    expected[: left * ELEMENTS] = -1
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0)


def average(deaths: dict[int, int], posted: bool) -> list[float]:
    """Return the average of all learners, some of which die in a slice.

    Args:
        deaths: learner -> the slice that it has not contributed to.
        posted: whether they die when they have begun to send it.
    """
    slice_smaller()
    with session("local_sgd", len(numbers()), period=1) as run:
        run.learner.params.fill_(4.0**run.learner.rank)
        if run.learner.rank in deaths:
            die_in_slice(deaths[run.learner.rank], posted)
        run.step()
        run.finish()
        return run.learner.params.tolist()


def die_in_slice(number: int, posted: bool) -> None:
    next_part, begin_in = Contribution.next_part, Collectives.begin_in

    def next_or_die(self: Contribution) -> Any:
        if self.completed == number and not posted:
            os.kill(os.getpid(), signal.SIGKILL)
        part = next_part(self)
        begun.append(self.completed)
        return part

    def begin_and_die(*arguments: Any) -> Any:
        handle = begin_in(*arguments)
        if begun and begun[-1] == number and posted:
            os.kill(os.getpid(), signal.SIGKILL)
        return handle

    begun: list[int] = []
    Contribution.next_part = next_or_die  # type: ignore[method-assign]
    Collectives.begin_in = begin_and_die  # type: ignore[method-assign]


@pytest.mark.parametrize("posted", [False, True])
@pytest.mark.parametrize(
    "deaths", [{1: 0}, {3: 2}, {0: SLICES - 1}, {3: 1, 2: 3}, {0: 2, 1: 2}]
)
def test_a_death_leaves_the_slices_before_as_they_are(
    deaths: dict[int, int], posted: bool
) -> None:
    """Each slice is a mean of all who were left; they only get fewer."""
    found = launch(4, average, deaths, posted, dying=set(deaths))
    living = [found[rank] for rank in range(4) if rank not in deaths]
    assert all(each == living[0] for each in living)
    slices = [living[0][at : at + ELEMENTS] for at in range(0, 19, ELEMENTS)]
    assert all(len(set(each)) == 1 for each in slices)
    order = sorted(deaths, key=deaths.__getitem__)
    left = set(range(4))
    means = [sum(4.0**r for r in left - set(order[:n])) / (4 - n) for n in range(3)]
    gone = [means.index(each[0]) for each in slices]
    assert gone == sorted(gone)
    # gloo may have sent all of the last slice before its learner dies.
    assert posted or gone[-1] == len(deaths)
    gone.append(len(deaths))
    for number, rank in enumerate(order):
        first = next(at for at, lost in enumerate(gone) if lost > number)
        assert abs(first - deaths[rank]) <= 1


def fail_once(rank: int, number: int) -> list[float]:
    """Return the average, although a learner's network fails after a slice."""
    slice_smaller()
    complete, calls = Collectives.complete, itertools.count()

    def failing(self: Collectives, handle: Any) -> None:
        complete(self, handle)
        if watched and next(calls) == number:
            raise RuntimeError("Connection closed by peer")

    with session("local_sgd", len(numbers()), period=1) as run:
        watched = run.learner.rank == rank
        Collectives.complete = failing  # type: ignore[method-assign]
        run.learner.params.copy_(numbers() * (run.learner.rank + 1))
        run.step()
        run.finish()
        assert next(calls) > number or not watched
        return run.learner.params.tolist()


@pytest.mark.parametrize("number", range(1, SLICES + 1))
def test_a_failure_repeats_what_one_lacks_and_others_have(number: int) -> None:
    """Learners that have completed unequal numbers of slices still get one mean."""
    found = launch(3, fail_once, 1, number)
    for each in found:
        assert each == pytest.approx((2 * numbers()).tolist(), rel=1e-15)


def forget_once(number: int, options: dict[str, int]) -> list[float]:
    """Return the average, although learner 1's network fails in its part of a slice.

    Gloo forgets learner 0's part of it.
    """
    if "delay" not in options:  # Beside the training it is not sliced.
        slice_smaller()
    begin_in, calls = Collectives.begin_in, itertools.count()

    def begin(self: Collectives, *arguments: Any) -> InFlight:
        handle = begin_in(self, *arguments)
        if run.learner.rank == 2 or next(calls) != number:
            return handle
        if run.learner.rank == 0:
            return replace(handle, works=[Forgotten()])
        return replace(handle, finish=fail)

    def fail() -> Tensor:
        raise RuntimeError("Connection closed by peer")

    with session("local_sgd", len(numbers()), **options) as run:
        run.learner.params.copy_(numbers() * (run.learner.rank + 1))
        Collectives.begin_in = begin  # type: ignore[method-assign]
        for _ in range(options["period"] + options.get("delay", 0)):
            run.step()
        run.finish()
        assert next(calls) > number or run.learner.rank == 2
        return run.learner.params.tolist()


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (0, {"period": 1}),
        (2, {"period": 1}),
        (SLICES - 1, {"period": 1}),
        (0, {"period": 2, "delay": 1}),
    ],
)
def test_a_failure_ends_a_wait_that_gloo_has_forgotten(
    number: int, options: dict[str, int]
) -> None:
    """All three live, so nobody is lost for whom the others would stop waiting."""
    found = launch(3, forget_once, number, options)
    for each in found:
        assert each == pytest.approx((2 * numbers()).tolist(), rel=1e-15)
