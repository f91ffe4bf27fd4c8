"""Who acts for all in ESPnet's training."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from espnet2.train.distributed_utils import DistributedOption

from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.run_lock import RunLock
from espnet_distopt.distributed.stop_signals import Stopped
from espnet_distopt.espnet.training.run import Lead, Run
from espnet_distopt.monitoring import lines


@pytest.fixture(autouse=True)
def level_is_kept() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


class Others:
    """A session's view of the learners, which a test changes."""

    def __init__(self, size: int) -> None:
        self.members = Members.everybody(size)
        self.restarts = [0] * size
        self.driver = self.learner = self

    def incarnation(self, rank: int) -> int:
        return self.restarts[rank]

    def die(self, *ranks: int) -> None:
        self.members = self.members.without(ranks)

    def join(self, *ranks: int) -> None:
        living = sorted({*self.members.ranks, *ranks})
        self.members = Members(self.members.version + 1, tuple(living))
        for rank in ranks:
            self.restarts[rank] += 1


def make(folder: Path, others: Others, rank: int, joins: bool = False) -> Run:
    option = DistributedOption(distributed=True, dist_rank=rank, dist_world_size=3)
    options: Any = SimpleNamespace(
        output_dir=folder,
        max_epoch=9,
        distopt="adpsgd",
        log_level="INFO",
        use_tensorboard=False,
    )
    lock = RunLock(folder)
    run = Run(options, rank, 3, Lead(rank, option, options, lock, joins))
    run.session = others  # type: ignore[assignment]
    return run


def told(run: Run) -> list[str]:
    """Let `run` follow, and return the members that it has told of."""
    lines: list[str] = []
    run.progress.follow = lambda m: lines.append("".join(map(str, m.ranks)))  # type: ignore[method-assign]
    run.follow()
    return lines


def test_the_lead_stays_with_the_one_that_has_taken_it_over(tmp_path: Path) -> None:
    others = Others(3)
    first, second = make(tmp_path, others, 1), make(tmp_path, others, 2)
    others.die(0)
    assert (told(first), told(second)) == (["12"], ["12"])
    assert (first.lead.leads, second.lead.leads) == (True, False)
    others.join(0)
    assert (told(first), told(second)) == (["012"], ["012"])
    assert (first.lead.leads, second.lead.leads) == (True, False)
    others.die(1)
    told(second)
    assert second.lead.leads
    assert first.lead._option.dist_rank == second.lead._option.dist_rank == 0


def test_a_death_and_a_return_within_one_step_are_told_both(tmp_path: Path) -> None:
    others = Others(3)
    run = make(tmp_path, others, 1)
    others.die(0)
    others.join(0)
    assert told(run) == ["12", "012"]
    assert run.lead.leads
    assert told(run) == []


def test_a_replacement_writes_nothing_until_it_leads(tmp_path: Path) -> None:
    others = Others(3)
    others.die(0)
    others.join(0)
    run = make(tmp_path, others, 0, joins=True)
    run.handover.taken = {"saves": 4, "epoch": 7}
    run.open_session = lambda *_: others  # type: ignore[method-assign, assignment, return-value]
    assert run.join(None, []) == 7  # type: ignore[arg-type]
    option = run.lead._option
    assert (run.lead.leads, run.saved.saves, option.dist_rank) == (False, 4, 1)
    assert not option.distributed  # So ESPnet makes no DDP model.
    run.lead.begin_epoch()
    assert option.distributed
    others.die(1, 2)
    told(run)
    assert (run.lead.leads, option.dist_rank) == (True, 0)


def test_a_lead_that_is_handed_over_frees_the_lock(tmp_path: Path) -> None:
    """Both were restarted as often: the lower rank leads."""
    others = Others(3)
    others.die(0, 1, 2)
    others.join(1)
    run = make(tmp_path, others, 1, joins=True)
    told(run)
    lock = run.lead._lock
    assert run.lead.leads and lock._files
    others.join(0)
    told(run)
    assert (run.lead.leads, run.lead.leader, lock._files) == (False, 0, [])


def test_after_a_stop_nothing_follows(tmp_path: Path) -> None:
    run = make(tmp_path, Others(1), 0)
    run.session = None
    with pytest.raises(Stopped), run:
        run.options.resume = True
        run.progress.begin_epoch(1, 10)
        run.ask_to_stop("SIGUSR1")
        run.stop(saved=True)
    last = lines.read(tmp_path / "distopt" / "learner0.jsonl")[-1]
    assert (last.event, last.saved, last.signal) == ("stop", True, "SIGUSR1")
