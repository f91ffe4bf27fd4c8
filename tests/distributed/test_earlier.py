"""What the earlier sessions of a process mean for the next one."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from espnet_distopt.core.protocols import Membership
from espnet_distopt.distributed import earlier, keys
from espnet_distopt.distributed.earlier import keep, next_session
from espnet_distopt.distributed.heartbeats import LEFT
from espnet_distopt.distributed.launch_variables import INCARNATION
from espnet_distopt.errors import InputError
from tests.processes import launch
from tests.sessions import session, step


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


alone = pytest.mark.usefixtures("group")


def begin(rank: int) -> tuple[Any, Membership]:
    """Begin a session as `rank` of three."""
    opening = next_session(rank)
    membership = Membership(opening.store, rank, 3, opening.incarnation)
    keep(opening, membership)
    return opening.store, membership


@alone
def test_a_session_without_one_that_has_died_is_refused() -> None:
    store, membership = begin(0)
    begin(0)
    next_session(0)
    membership.remove(store, [2], "it has died")
    with pytest.raises(InputError, match="an earlier one has lost learner 2: start"):
        next_session(0)


@alone
def test_one_that_has_left_may_come_back() -> None:
    store, membership = begin(0)
    store.set(keys.beat("2.0"), LEFT)
    membership.remove(store, [2], "it ended with OSError")
    assert next_session(0).incarnation == 0


@alone
def test_a_death_that_only_another_has_noticed_counts() -> None:
    store, _ = begin(0)
    Membership(store, 1, 3).remove(store, [2], "it has died")
    with pytest.raises(InputError, match="lost learner 2"):
        next_session(0)


@alone
def test_one_that_was_replaced_is_there() -> None:
    store, membership = begin(0)
    membership.remove(store, [2], "it has died")
    assert Membership(store, 2, 3, incarnation=1).join(store, epoch=1)
    assert next_session(0).incarnation == 0


@alone
def test_a_replacement_joins_what_the_dead_one_had_begun_and_begins_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INCARNATION, "2")
    first = next_session(1)
    assert first.incarnation == 2
    keep(first, Membership(first.store, 1, 3, first.incarnation))
    second = next_session(1)
    assert second.incarnation == 0
    keep(second, Membership(second.store, 1, 3))
    # Two sessions side by side: the dead one had begun the other one, too.
    monkeypatch.setattr(earlier, "_serial", iter([7]))
    default = dist.distributed_c10d._get_default_store()
    dist.PrefixStore("espnet_distopt/7", default).set(keys.beat("1.0"), "7")
    assert next_session(1).incarnation == 2


def lose_and_begin_again(victim: int) -> tuple[str, float]:
    """Begin a session after one in which `victim` has died.

    Return how that fails, and after how many seconds.
    """
    with session("adpsgd") as run:
        for count in range(2000):
            if run.learner.rank == victim and count == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            step(run)
            if victim not in run.driver.members.ranks:
                break
            time.sleep(0.01)
    begin = time.monotonic()
    with pytest.raises(InputError) as caught:
        session("adpsgd")
    return str(caught.value), time.monotonic() - begin


@pytest.mark.processes
def test_the_next_session_names_at_once_who_has_died() -> None:
    found = launch(3, lose_and_begin_again, 1, timeout=60, dying={1})
    for rank in (0, 2):
        line, seconds = found[rank]
        assert line.startswith(f"learner {rank}: a session needs all learners, and")
        assert "has lost learner 1: start all" in line
        assert seconds < 5
