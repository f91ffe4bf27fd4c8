"""These tests run random schedules, and check that schedules find mistakes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from torch import Tensor

from espnet_distopt.algorithms import ALGORITHMS, Algorithm, Registration
from espnet_distopt.algorithms.block.bmuf import Bmuf
from espnet_distopt.algorithms.block.options import BmufConfig
from espnet_distopt.algorithms.gossip.adpsgd import Adpsgd, AdpsgdConfig
from espnet_distopt.algorithms.gossip.snapshot import Snapshot
from espnet_distopt.core.effects import AllReduceMean, Exchange, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.simulation.engine import Engine
from tests.simulation import schedules
from tests.simulation.invariants import InvariantError
from tests.simulation.schedules import Schedule

Option = tuple[str, Any]

FAMILIES: dict[str, tuple[str, list[int], list[Option], int]] = {
    "ring": ("adpsgd", [2, 4, 6], [("topology", "ring")], 2500),
    "random": ("adpsgd", [4, 6, 8], [("topology", "random")], 2000),
    "odd ring": ("adpsgd", [3, 5, 7], [("topology", "ring")], 1600),
    "odd random": ("adpsgd", [3, 5, 7], [("topology", "random")], 1600),
    "nodes of 2": ("hadpsgd", [4, 6, 8], [("per_node", 2)], 1500),
    "nodes of 3": ("hadpsgd", [6, 9], [("per_node", 3), ("topology", "random")], 600),
    "nodes of 1": ("hadpsgd", [2, 3, 4], [("per_node", 1)], 400),
    "rounded ring": ("adpsgd", [2, 4, 5], [("exchange", "bfloat16")], 600),
    "rounded nodes": (
        "hadpsgd",
        [4, 6],
        [("per_node", 2), ("exchange", "bfloat16")],
        300,
    ),
    "randomized ring": ("adpsgd", [5, 8], [("topology", "randomized_ring")], 60),
    "one": ("adpsgd", [1], [], 20),
    "one node": ("hadpsgd", [2], [("per_node", 2)], 20),
}
"""Algorithm, numbers of learners, options, and how many different schedules to see."""


FAULTY: dict[str, tuple[str, list[int], list[Option], int]] = {
    "ring": ("adpsgd", [2, 4], [("topology", "ring")], 1300),
    "ring of 6": ("adpsgd", [6], [("topology", "ring")], 1000),
    "random": ("adpsgd", [4, 6], [("topology", "random")], 900),
    "random of 8": ("adpsgd", [8], [("topology", "random")], 700),
    "odd ring": ("adpsgd", [3, 5], [("topology", "ring")], 900),
    "randomized ring": ("adpsgd", [4, 7], [("topology", "randomized_ring")], 50),
    "ring of 7": ("adpsgd", [7], [("topology", "ring")], 700),
    "rounded": ("adpsgd", [2, 4, 5], [("exchange", "bfloat16")], 800),
    "nodes of 2": ("hadpsgd", [4, 6], [("per_node", 2)], 800),
    "4 nodes of 2": ("hadpsgd", [8], [("per_node", 2)], 400),
    "nodes of 3": ("hadpsgd", [6, 9], [("per_node", 3), ("topology", "random")], 400),
    "rounded nodes": (
        "hadpsgd",
        [4, 6],
        [("per_node", 2), ("exchange", "bfloat16")],
        300,
    ),
    "local_sgd": ("local_sgd", [2, 4], [("period", 2)], 300),
    "bmuf": ("bmuf", [2, 3, 5], [("period", 2)], 400),
    "late bmuf": ("bmuf", [2, 3, 5], [("period", 3), ("delay", 2)], 400),
    "bmuf_adam": ("bmuf_adam", [2, 3, 5], [("period", 2)], 300),
    "slowmo": ("slowmo", [3, 4], [("period", 2)], 200),
    "diloco": ("diloco", [3, 4], [("period", 2)], 200),
    "adasum": ("adasum", [2, 3, 5], [("period", 2)], 300),
}
"""The same, of schedules in which learners crash, fall silent, return and join."""


def family(
    name: str, sizes: list[int], options: list[Option], faulty: bool = False
) -> Iterator[Schedule]:
    seed = 0
    while True:
        for size in sizes:
            faults = 1 + seed % 6 if faulty else 0
            yield Schedule(name, size, seed, tuple(options), faults)
            seed += 1


def test_the_families_make_ten_thousand() -> None:
    assert sum(count for *_, count in FAMILIES.values()) >= 10_000
    assert sum(count for *_, count in FAULTY.values()) >= 10_000


SHARES = [20, pytest.param(1, marks=pytest.mark.thorough)]
"""A twentieth of the schedules of each family on each change, all of them seldom."""


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("title", FAMILIES)
def test_every_invariant_holds_in_different_schedules(title: str, share: int) -> None:
    different(*FAMILIES[title], share=share)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("title", FAULTY)
def test_every_invariant_holds_where_learners_die_and_join(
    title: str, share: int
) -> None:
    different(*FAULTY[title], faulty=True, share=share)


def different(
    name: str,
    sizes: list[int],
    options: list[Option],
    count: int,
    faulty: bool = False,
    share: int = 1,
) -> None:
    """Run as many different schedules, or that share of them."""
    orders, count = set(), -(-count // share)
    for tried, schedule in enumerate(family(name, sizes, options, faulty)):
        orders.add(schedule.run())
        if len(orders) == count:
            break
        assert tried < 2 * count + 50, "the schedules are too much alike"


def test_a_schedule_is_its_line() -> None:
    for schedule in islice(family("adpsgd", [2, 5], [("topology", "random")]), 6):
        assert Schedule.parse(repr(schedule)) == schedule
        assert Schedule.parse(str(schedule)).run() == schedule.run()
    for line in (
        "hadpsgd learners=4 seed=7 per_node=2 from_consensus=True",
        "adpsgd learners=4 seed=7 faults=3 topology=ring",
    ):
        assert repr(Schedule.parse(line)) == line


def test_the_command_runs_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "adpsgd learners=3 seed=5"
    schedules.main([line])
    digest = Schedule("adpsgd", 3, 5).run()
    expected = f"{line}: all invariants hold, order of events {digest}\n"
    assert capsys.readouterr().out == expected
    schedules.main(line.split())
    assert capsys.readouterr().out == expected


# Mistakes


class AveragesLiveWeights(Adpsgd):
    """It sets x = (x_now + received) / 2, so half of the meanwhile steps is lost."""

    def __init__(self, config: AdpsgdConfig, learner: Learner) -> None:
        super().__init__(config, learner)
        self._live = learner.params

    def _average_with(self, peer: int) -> Program:
        sent = self.snapshot.begin_exchange()
        received = yield Exchange(peer, sent, self.snapshot.spare())
        self._live.add_(received).mul_(0.5)
        self.snapshot._lent = False
        self.snapshot.publish()


class OneAnswerTwice(Snapshot):
    """It does not correct the published copy."""

    def end_exchange(self, received: Tensor, sent: Tensor | None = None) -> Program:
        before = self._copy.clone()
        yield from super().end_exchange(received, sent)
        self._copy.copy_(before)


class AnswersTwice(Adpsgd):
    """It sends the same copy in two exchanges during one step."""

    def __init__(self, config: AdpsgdConfig, learner: Learner) -> None:
        super().__init__(config, learner)
        self.snapshot = OneAnswerTwice(learner, shared=self._gossips)


class PullsOnly(Adpsgd):
    """Only the active learner moves towards the other."""

    def _average_with(self, peer: int) -> Program:
        sent = self.snapshot.begin_exchange()
        received = yield Exchange(peer, sent, self.snapshot.spare())
        yield from self.snapshot.end_exchange(
            received if self.colours.active else sent.clone()
        )


class CorrectsTwice(Adpsgd):
    """It sometimes applies a correction and leaves it pending."""

    def _correct(self, learner: Learner) -> Program:
        if learner.steps % 3 == 0:
            for difference in self.snapshot.unapplied():
                learner.params.add_(difference, alpha=0.5)
        yield from super()._correct(learner)


class Unbounded(Adpsgd):
    """It never waits for an exchange."""

    def after_step(self, learner: Learner) -> Program:
        yield from self._correct(learner)


class TwoActives(Adpsgd):
    """All learners invite first, so they wait in a circle and nobody answers."""

    def __init__(self, config: AdpsgdConfig, learner: Learner) -> None:
        super().__init__(config, learner)
        self.colours.active = True


class LosesTheLast(Adpsgd):
    """It forgets a correction that comes after the last step."""

    def finish(self, learner: Learner) -> Program:
        yield from ()
        self.snapshot._pending = None
        self.snapshot.publish()


class LosesAGradient(Adpsgd):
    """It publishes, and then goes on from the copy of the step before."""

    def after_step(self, learner: Learner) -> Program:
        if learner.steps == 3:
            learner.params.copy_(self.snapshot._copy)
        yield from super().after_step(learner)


class NeverEnds(Adpsgd):
    """A passive learner waits for invitations from learners that have retired."""

    def finish(self, learner: Learner) -> Program:
        while learner.size > 1:
            yield AllReduceMean(learner.params.clone())


class AppliesWhatWasDropped(Adpsgd):
    """It takes an exchange that was dropped for one that has brought zeros."""

    def _average_with(self, peer: int) -> Program:
        sent = self.snapshot.begin_exchange()
        received = yield Exchange(peer, sent, self.snapshot.spare())
        if received is None:
            received = self.snapshot.spare().zero_()
        yield from self.snapshot.end_exchange(received)


class KeepsTheCopyLent(Adpsgd):
    """It forgets that an exchange that was dropped has ended."""

    def _average_with(self, peer: int) -> Program:
        sent = self.snapshot.begin_exchange()
        received = yield Exchange(peer, sent, self.snapshot.spare())
        if received is not None:
            yield from self.snapshot.end_exchange(received)


class DealsAtOnce(Adpsgd):
    """It deals new colours as soon as it hears of a death, and others hear later."""

    def change_members(self, learner: Learner, members: Members) -> None:
        super().change_members(learner, members)
        self.colours.deal(members.ranks)


class EndsBlocksOnItsOwn(Bmuf):
    """It takes its own number of steps for the momentum, which others do not know."""

    def change_members(self, learner: Learner, members: Members) -> None:
        super().change_members(learner, members)
        self.rule = replace(self.rule, momentum=1 / (2 + learner.steps + learner.rank))


MISTAKES = {
    AveragesLiveWeights: "mean|wrong copy",
    AnswersTwice: "publishes a wrong copy",
    PullsOnly: "changed the learners' mean",
    CorrectsTwice: "changed the learners' mean|wrong copy",
    Unbounded: "steps old",
    TwoActives: "wait for ever: .*Invite of",
    LosesTheLast: "mean",
    LosesAGradient: "mean",
    NeverEnds: "runs on for ever",
    AppliesWhatWasDropped: "changed the learners' mean|wrong copy",
    KeepsTheCopyLent: "one exchange in flight|steps old|wait for ever",
    DealsAtOnce: "wait for ever",
    EndsBlocksOnItsOwn: "has another consensus model",
}
ABOUT_THE_DEAD = (
    AppliesWhatWasDropped,
    KeepsTheCopyLent,
    DealsAtOnce,
    EndsBlocksOnItsOwn,
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_and_its_line_repeats_it(
    mistake: type[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BmufConfig if issubclass(mistake, Bmuf) else AdpsgdConfig
    monkeypatch.setitem(ALGORITHMS, "mistaken", Registration(mistake, config))
    faulty = mistake in ABOUT_THE_DEAD
    finds(family("mistaken", [4, 5], [], faulty), MISTAKES[mistake])


def test_a_driver_that_lets_a_learner_wait_for_the_dead_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "_drop_if_gone", lambda self, gossip: None)
    finds(family("adpsgd", [4, 5], [], faulty=True), "waits for ., of whose death")


def finds(schedules: Iterator[Schedule], words: str) -> None:
    """Check that a schedule finds a mistake, and that its line finds it again."""
    for schedule in islice(schedules, 60):
        try:
            schedule.run()
        except InvariantError as error:
            found = error
            break
    else:
        pytest.fail("not found")
    message, command = str(found).rsplit("\n", 1)
    assert re.search(words, message), message
    given = re.fullmatch(r"python -m [\w.]+schedules '(.*)'", command)
    assert given is not None
    with pytest.raises(InvariantError) as again:
        Schedule.parse(given[1]).run()
    assert str(again.value) == str(found)
