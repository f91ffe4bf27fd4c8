"""Learners that die or freeze in the middle of an epoch, and the others, who go on."""

import itertools
import logging
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from processes import Lines, launch
from torch import nn

from espnet_distopt.core.effects import AllToAll
from espnet_distopt.distributed import messages
from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.pairs import Pairs
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.distributed.surviving import SurvivingCollectives
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue
from tests import sessions
from tests.sessions import session

SIZE = 4
SILENCE = 3.0
EPOCHS = 3
STEPS = 60
ITEMS = 200
DEATH = 20
"""The step of the second epoch in which a learner dies."""


class Survivor(NamedTuple):
    """What a learner that goes on has seen.

    Attributes:
        consensus: after each epoch.
        params: at the end of each epoch, before the consensus.
        applied: with whom it has exchanged, how often, all epochs together.
        after: the same, after the death alone.
        items: those that it has begun, of each epoch.
        lines: its log.
    """

    consensus: list[float]
    params: list[float]
    applied: Counter[int]
    after: Counter[int]
    items: list[list[int]]
    lines: list[str]


def step(run: Session) -> None:
    """Add to this learner's parameter what no other one adds."""
    sessions.step(run, lambda x: -growth(run.learner.rank) * x.sum())


def growth(rank: int) -> float:
    return 4.0**rank


def die(run: Session, folder: str) -> None:
    """Note what this learner takes along, and end this process."""
    state = run.algorithm.gossip_state()
    assert state is not None
    lacking = sum((d.sum().item() for d in state.differences), 0.0)
    left = run.learner.params.sum().item() + state.weight * lacking
    Path(folder, "left").write_text(repr(left))
    os.kill(os.getpid(), signal.SIGKILL)


def call_after_exchanges(call: Callable[[int], None]) -> None:
    """Let `call` have the peer of each exchange that is applied, from now on."""
    swap: Any = Pairs.swap

    def swapped(self: Any, *arguments: Any) -> bool:
        peer = self._peer
        if committed := swap(self, *arguments):
            call(peer)
        return bool(committed)

    Pairs.swap = swapped  # type: ignore[method-assign, assignment]


def train(folder: str, victim: int, queued: bool) -> Survivor:
    """Train in three epochs, in the second of which `victim` dies."""
    rank, handler = dist.get_rank(), Lines()
    logging.getLogger().addHandler(handler)
    applied, after = Counter[int](), Counter[int]()

    def count(peer: int) -> None:
        applied[peer] += 1
        after[peer] += Path(folder, "left").exists()

    call_after_exchanges(count)
    params: list[float] = []
    consensus: list[float] = []
    items: list[list[int]] = []
    with session("adpsgd") as run:
        for epoch in range(EPOCHS):
            items.append([])
            queue = WorkQueue(run, ITEMS) if queued else None
            for item in queue.read(list) if queue else range(STEPS):
                items[-1].append(item)
                time.sleep(0.005)
                if rank == victim and (epoch, len(items[-1])) == (1, DEATH):
                    die(run, folder)
                step(run)
            run.finish()
            params.append(run.learner.params.item())
            run.enter_consensus()
            consensus.append(run.learner.params.item())
            run.leave_consensus()
    return Survivor(consensus, params, applied, after, items, handler.lines)


def check(found: list[Survivor], victim: int, left: float) -> None:
    """Check what the survivors say of a training in which `victim` died."""
    ranks = [rank for rank in range(SIZE) if rank != victim]
    survivors = {rank: found[rank] for rank in ranks}
    for epoch in range(EPOCHS):
        assert len({s.consensus[epoch] for s in survivors.values()}) == 1
    for epoch in range(1, EPOCHS):
        mean = sum(s.params[epoch] for s in survivors.values()) / len(ranks)
        assert survivors[ranks[0]].consensus[epoch] == pytest.approx(mean, rel=1e-12)
    # Nothing is lost but what the dead one has taken along, and at most the one
    # correction of the exchange that it was in.
    grown = [sum(growth(r) * len(survivors[r].items[e]) for r in ranks) for e in (0, 1)]
    before = survivors[ranks[0]].consensus[0] * SIZE
    rest = sum(s.params[1] for s in survivors.values())
    total = before + grown[1] + growth(victim) * (DEATH - 1)
    assert abs(rest + left - total) < total / SIZE
    last = sum(growth(r) * len(survivors[r].items[2]) for r in ranks)
    after = sum(s.params[2] for s in survivors.values())
    assert after == pytest.approx(rest + last, rel=1e-12)
    for one in ranks:
        for other in ranks:
            assert survivors[one].applied[other] == survivors[other].applied[one]
        assert sum(survivors[one].after[r] for r in ranks) > 0, "nobody is left alone"
        deaths = [line for line in survivors[one].lines if f"learner {victim}" in line]
        assert len(deaths) == 1 and "3 of 4 go on" in deaths[0], deaths


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("victim", "queued"),
    [
        *[(0, True), (1, False), (2, True)],
        *(
            pytest.param(*case, marks=THOROUGH)
            for case in [(0, False), (1, True), (2, False), (3, False), (3, True)]
        ),
    ],
)
def test_the_others_go_on(victim: int, queued: bool, tmp_path: Path) -> None:
    found = launch(SIZE, train, str(tmp_path), victim, queued, dying={victim})
    check(found, victim, float((tmp_path / "left").read_text()))
    if queued:
        dead = set(range(ITEMS))
        for each in found:
            dead -= set(each.items[1]) if each else set()
            assert each is None or len(set(each.items[1])) == len(each.items[1])
        assert len(dead) <= DEATH, "only what the dead one had begun is missing"
        last = [item for each in found if each for item in each.items[2]]
        assert sorted(last) == list(range(ITEMS))


def freeze(folder: str, victim: int) -> tuple[float, int, str]:
    """Train until the victim, which is stopped for three silences, has ended."""
    rank, ended, count = dist.get_rank(), Path(folder, "ended"), 0

    def note(peer: int) -> None:
        nonlocal count
        count += peer == victim and Path(folder, "stopped").exists()

    call_after_exchanges(note)
    try:
        with session("adpsgd") as run:
            for epoch in itertools.count():
                for number in range(20):
                    time.sleep(0.005)
                    if (rank, epoch, number) == (victim, 1, 5):
                        stop(run, folder)
                    step(run)
                run.finish()
                if run.mean(float(ended.exists())) > 0:
                    return run.learner.params.item(), count, ""
    except PeerLostError as error:
        ended.touch()
        return 0.0, count, str(error)
    raise AssertionError


def stop(run: Session, folder: str) -> None:
    """Stop this process for three silences; its parameters are poisonous then."""
    run.learner.params.fill_(1e15)
    Path(folder, "stopped").touch()
    wake = f"sleep {3 * SILENCE}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", wake])
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=THOROUGH)])
def test_one_that_was_stopped_ends_and_nothing_is_averaged_with_it(
    victim: int, tmp_path: Path
) -> None:
    found = launch(SIZE, freeze, str(tmp_path), victim, timeout=80)
    for rank, (params, exchanges, error) in enumerate(found):
        if rank == victim:
            assert "the others have given this learner up" in error
            assert "start it again" in error
        else:
            assert params < 1e14 and exchanges <= 1, "one may have been under way"


def lose_one_of_a_node(victim: int) -> tuple[float, str]:
    """Train in two nodes of two learners; `victim` is killed in the second epoch."""
    rank = dist.get_rank()
    try:
        with session("hadpsgd", per_node=2) as run:
            for epoch in range(3):
                for number in range(20):
                    time.sleep(0.005)
                    if (rank, epoch, number) == (victim, 1, 5):
                        os.kill(os.getpid(), signal.SIGKILL)
                    step(run)
                run.finish()
                run.enter_consensus()
                run.leave_consensus()
            return run.learner.params.item(), f"{run.learner.members.ranks}"
    except PeerLostError as error:
        return 0.0, str(error)


@pytest.mark.parametrize(
    "victim", [0, *(pytest.param(rank, marks=THOROUGH) for rank in (1, 2)), 3]
)
def test_a_node_leaves_as_a_whole_and_the_others_go_on(victim: int) -> None:
    found = launch(SIZE, lose_one_of_a_node, victim, dying={victim}, timeout=60)
    other, node = victim ^ 1, {2, 3} if victim < 2 else {0, 1}
    assert f"learner {victim} has died" in found[other][1]
    assert "start it again" in found[other][1]
    for rank in node:
        assert found[rank] == (found[min(node)][0], str(tuple(sorted(node))))


def die_late(victim: int) -> list[str]:
    """Lose a passive learner when the others have ended their gossip, and wait."""
    handler = Lines()
    logging.getLogger().addHandler(handler)
    with session("adpsgd") as run:
        step(run)
        if run.learner.rank == victim:
            # The other one invites nobody any more once the store says so.
            run.driver.store.get("retired/1/0.0")
            os.kill(os.getpid(), signal.SIGKILL)
        run.finish()
    return handler.lines


def test_one_that_dies_while_nobody_talks_to_it_is_not_waited_for() -> None:
    """No connection breaks in the hands of anybody: the heartbeat stops."""
    [said] = launch(2, die_late, 1, dying=[1])[0]
    assert said.startswith("learner 1 has been silent for ")


def lose_before_the_average(victim: int, number: int, moment: int) -> tuple[float, int]:
    """Lose a learner while the others train on beside the average that they await."""
    with session("local_sgd", period=4, delay=2) as run:
        for count in range(6):
            if (run.learner.rank, count) == (victim, moment):
                os.kill(os.getpid(), number)
            step(run)
        average = float(run.learner.params)
        run.finish()
        return average, len(run.learner.members.ranks)


SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_delayed_average_is_repeated_from_what_was_sent(
    victim: int, number: int
) -> None:
    """What the others have trained meanwhile does not count as sent."""
    found = launch(3, lose_before_the_average, victim, number, 3, dying=[victim])
    others = [rank for rank in range(3) if rank != victim]
    mean = sum(4 * growth(rank) for rank in others) / 2
    for rank in others:
        assert found[rank] == (pytest.approx(mean + 2 * growth(rank)), 2)


@pytest.mark.parametrize("number", SIGNALS)
def test_survivors_agree_on_an_average_that_a_lost_learner_has_begun(
    number: int,
) -> None:
    """They have the mean with it or without it, but both have the same one."""
    found = launch(3, lose_before_the_average, 1, number, 4, dying=[1])
    starts = [found[rank][0] - 2 * growth(rank) for rank in (0, 2)]
    assert starts[0] == pytest.approx(starts[1])
    means = [
        sum(4 * growth(r) for r in ranks) / len(ranks) for ranks in ((0, 2), range(3))
    ]
    assert any(starts[0] == pytest.approx(mean) for mean in means)
    assert found[0][1] == found[2][1] == 2


def connect_beside() -> int:
    """Return how many connections of a driver end its waits that survival needs."""
    driver: Any = ProcessGroupDriver(silence=SILENCE)
    connections = driver._liveness.connections
    before = len(connections.descriptors())
    driver.survive(lambda rank: [rank], lambda members: None)
    added = len(connections.descriptors()) - before
    driver.leave()
    return added


def test_the_store_that_counts_beside_the_training_is_severed_with_the_rest() -> None:
    assert launch(2, connect_beside) == [1, 1]


def take_before_another() -> float:
    """Take a late average while the other learner still trains before it takes it."""
    with session("local_sgd", period=4, delay=2) as run:
        store = dist.PrefixStore("order", dist.distributed_c10d._get_default_store())
        for count in range(6):
            if (run.learner.rank, count) == (1, 5):
                store.wait(["taken"])
            step(run)
            if (run.learner.rank, count) == (0, 5):
                store.set("taken", "yes")
        average = float(run.learner.params)
        run.finish()
        return average


def test_a_late_average_waits_for_no_learner_that_has_begun_it() -> None:
    """It is decided on beside the training: one that trains slowly holds up nobody."""
    found = launch(2, take_before_another, timeout=30)
    mean = sum(4 * growth(rank) for rank in range(2)) / 2
    assert found == [pytest.approx(mean + 2 * growth(rank)) for rank in range(2)]


def die_between_turns(victim: int) -> tuple[list[float], int]:
    """Lose a learner while fragments take turns, beside a late average of the second.

    The first parameter has been averaged by all after 2 steps; the second one is to be
    averaged after 4 of them, and nobody else dies later.
    """
    model = nn.Linear(1, 1, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    driver = ProcessGroupDriver(silence=SILENCE)
    options = {"period": 4, "fragments": 2, "delay": 1}
    with Session(model, optimizer, "local_sgd", driver, **options) as run:
        for count in range(9):
            if (run.learner.rank, count) == (victim, 4):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            total = sum(x.sum() for x in run.learner.parameters)
            (-growth(run.learner.rank) * total).backward()  # type: ignore[operator]
            optimizer.step()
            run.step()
        run.finish()
        return run.learner.params.tolist(), len(run.learner.members.ranks)


@pytest.mark.parametrize("victim", [0, 2])
def test_fragments_go_on_taking_turns_without_a_dead_learner(victim: int) -> None:
    found = launch(3, die_between_turns, victim, dying=[victim])
    others = [rank for rank in range(3) if rank != victim]
    mean = sum(growth(rank) for rank in others) / 2
    whole = sum(growth(rank) for rank in range(3)) / 3
    for rank in others:
        (first, second), members = found[rank]
        assert members == 2
        assert first == pytest.approx(2 * whole + 7 * mean)
        # The dead learner may have sent all of its part.
        assert second in (pytest.approx(9 * mean), pytest.approx(4 * whole + 5 * mean))


GATHERING: list[tuple[str, dict[str, Any]]] = [
    ("local_sgd", {"period": 2, "keep": 0.5}),
    ("adasum", {"period": 2}),
]


def die_in_messages(
    victim: int, posted: int | None, name: str, options: dict[str, Any]
) -> tuple[float, int]:
    """Lose a learner within a step, or when it has posted so many pieces."""
    with session(name, **options) as run:
        for count in range(8):
            if run.learner.rank == victim and count == 3:
                if posted is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                die_after(posted)
            step(run)
        run.finish()
        return float(run.learner.params), len(run.learner.members.ranks)


def die_after(posted: int) -> None:
    """Lose this learner when it has posted `posted` more pieces of messages."""
    post, numbers = messages._post, itertools.count()

    def dying(*arguments: Any) -> list[Any]:
        if next(numbers) == posted:
            os.kill(os.getpid(), signal.SIGKILL)
        return post(*arguments)

    messages._post = dying


def die_between_pieces(victim: int, posted: int) -> tuple[list[float], int]:
    """Lose a learner when it has posted so many pieces, several of which travel."""
    messages.MESSAGE = 8 * 10
    with session("adasum", 600) as run:
        for count in range(4):
            if run.learner.rank == victim and count == 2:
                die_after(posted)
            step(run)
        return run.learner.params.tolist(), len(run.learner.members.ranks)


@pytest.mark.parametrize(
    "posted", [1, 25, 70, *(pytest.param(n, marks=THOROUGH) for n in (5, 12, 45))]
)
def test_a_death_between_pieces_leaves_none_for_the_repetition(posted: int) -> None:
    """A shard has 20 pieces; an all-to-all and an all-gather have two turns each."""
    found = launch(3, die_between_pieces, 1, posted, dying=[1])
    assert found[0] == found[2] and found[0][1] == 2
    (value,) = set(found[0][0])  # All elements have had the same gradients.
    assert value > 0


def learn_of_the_death_first(victim: int) -> None:
    """Let this learner begin messages to all only when it knows of the death."""
    begin: Any = SurvivingCollectives.begin

    def later(self: Any, effect: Any, late: bool = False) -> Any:
        live = self._watch.liveness
        while isinstance(effect, AllToAll) and victim in live.members.ranks:
            time.sleep(0.01)
        return begin(self, effect, late)

    SurvivingCollectives.begin = later  # type: ignore[method-assign]


def die_before_another_begins(victim: int) -> tuple[float, int]:
    with session("adasum") as run:
        for count in range(4):
            if count == 2 and run.learner.rank == victim:
                die_after(0)
            elif count == 2 and run.learner.rank == 0:
                learn_of_the_death_first(victim)
            step(run)
        return float(run.learner.params), len(run.learner.members.ranks)


def test_who_knows_of_a_death_first_still_counts_collectives_as_the_others() -> None:
    """The survivors' next average of all has the same name on both of them."""
    found = launch(3, die_before_another_begins, 1, dying=[1])
    assert found[0] == found[2] and found[0][1] == 2


@pytest.mark.parametrize(("name", "options"), GATHERING)
@pytest.mark.parametrize(
    ("size", "victim", "posted"), [(3, 1, None), (3, 1, 0), (3, 2, 1), (2, 1, 0)]
)
def test_messages_of_all_to_all_are_repeated_without_the_dead(
    size: int, victim: int, posted: int | None, name: str, options: dict[str, Any]
) -> None:
    found = launch(size, die_in_messages, victim, posted, name, options, dying=[victim])
    others = [found[rank] for rank in range(size) if rank != victim]
    assert {left for _, left in others} == {size - 1}
    assert len({params for params, _ in others}) == 1


def die_while_a_group_is_made(stage: str) -> tuple[float, int]:
    """Learner 1 dies when the others make a group, and its address is known."""
    with session("adasum") as run:
        rank = run.learner.rank
        step(run)
        if rank == 1:
            time.sleep(1)  # The others are in the next step by then.
            os.kill(os.getpid(), signal.SIGKILL)
        forget_groups(run)
        if rank == 0 and stage == "opening":
            open_slowly(run)
        elif rank == 0:
            wait_like_gloo_once()
        for _ in range(2):
            step(run)
        return float(run.learner.params), len(run.learner.members.ranks)


def forget_groups(run: Session) -> None:
    """Let the next collective make its group anew."""
    driver: Any = run.driver
    driver._groups._groups.clear()


def open_slowly(run: Session) -> None:
    """Note the next connection only when a learner is lost, as slow resolvers do."""
    opening: Any = Connections.opening

    @contextmanager
    def slow(self: Any) -> Iterator[None]:
        with opening(self):
            yield
            Connections.opening = opening  # type: ignore[method-assign]
            while len(run.driver.members.ranks) == 3:  # type: ignore[attr-defined]
                time.sleep(0.01)
            time.sleep(0.3)

    Connections.opening = slow  # type: ignore[method-assign]


def wait_like_gloo_once() -> None:
    """Wait in the making of the next group for one who is to connect, for ever."""
    make = dist.ProcessGroupGloo

    def waiting(*_: Any) -> None:
        dist.ProcessGroupGloo = make  # type: ignore[misc]
        threading.Event().wait()

    dist.ProcessGroupGloo = waiting  # type: ignore[misc, assignment]


@pytest.mark.parametrize("stage", ["opening", "connecting"])
def test_a_learner_that_dies_while_a_group_is_made_holds_up_nobody(stage: str) -> None:
    found = launch(3, die_while_a_group_is_made, stage, dying=[1], timeout=60)
    assert found[0] == found[2] and found[0][1] == 2


def keys_after_steps() -> list[int]:
    with session("adasum") as run:
        driver: Any = run.driver
        found = []
        for count in range(60):
            step(run)
            if count >= 20:
                found.append(driver._watch.store.num_keys())
        return found


def test_the_store_does_not_grow_with_the_steps() -> None:
    found = launch(2, keys_after_steps)
    assert max(found[0][20:]) <= max(found[0][:20]) + 4


@pytest.mark.parametrize("seconds", [0.9, -1.0])
def test_a_heartbeat_below_a_second_is_refused(seconds: float) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="heartbeat_seconds must be at least 1"):
        Session(model, optimizer, "adpsgd", heartbeat_seconds=seconds)
