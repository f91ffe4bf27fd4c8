"""A fit that is stopped within an epoch, or killed after one, and goes on."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from tests.lightning import stopping
from tests.lightning.stopping import fit, rate
from tests.lightning.toy import Found, Toy
from tests.processes import launch

EXACT = ["allreduce", "bmuf_adam"]

QUEUED = {
    "between batches": (3, 0.0, signal.SIGTERM),
    "when the other has no batch left": (1, 0.1, signal.SIGTERM),
    "as distopt slurm does": (3, 0.0, signal.SIGUSR1),
    "as Ctrl-C does": (3, 0.0, signal.SIGINT),
}
"""When learner 1 is stopped: in which batch, how long each of its batches takes, and by
which signal."""


def stopped(
    folder: Path,
    algorithm: str,
    at: int,
    pause: float = 0.0,
    by: signal.Signals = signal.SIGTERM,
) -> Any:
    """Stop learner 1 in a batch of the second epoch; then go on."""
    rank = dist.get_rank()
    first = Toy("step", pause * rank, at if rank == 1 else None)
    first.signal, second = by, Toy("step")
    end = stopping.stopped(folder, algorithm, first, second)
    return end, first.seen, second.seen


def runs(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in EXACT:
        fit(folder / "killed", name, Toy("epoch"), max_epochs=2)
        last = str(folder / "killed" / name / "last.ckpt")
        found[name] = {
            "after": fit(folder / "killed", name, Toy("epoch"), last),
            "within": stopped(folder / "stopped", name, 3)[0],
            "whole after": fit(folder / "whole", name, Toy("epoch")),
            "whole within": fit(folder / "whole", name, Toy("step")),
        }
    for kind, (at, pause, by) in QUEUED.items():
        found[kind] = stopped(folder / kind, "adpsgd", at, pause, by)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch(2, runs, tmp_path_factory.mktemp("two"), timeout=200)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", ["after", "within"])
def test_what_goes_on_is_the_uninterrupted_run(
    two: Found, name: str, kind: str
) -> None:
    for learner in two:
        assert learner[name][kind] == learner[name][f"whole {kind}"]


@pytest.mark.parametrize("kind", QUEUED)
def test_no_batch_is_lost_or_repeated(two: Found, kind: str) -> None:
    runs = [learner[kind] for learner in two]
    seen = Counter(n for _, first, second in runs for n in [*first, *second])
    assert seen == Counter({n: 3 for n in range(64)})
    assert runs[0][0] == runs[1][0]


SCHEDULES = ["step", "epoch"]

TOGETHER = {
    "allreduce": ("allreduce", {}, 6),
    "bmuf_adam": ("bmuf_adam", {"period": 4}, 6),
}
"""Algorithms whose learners agree to stop after the last of 8 batches, if learner 1 is
told to in this one: their options, and the number of that batch."""

SHARES = {"queue": True, "shares": False}
"""Whether learners of adpsgd have a work queue."""


class Last(Toy):
    """Learner 1 is told to stop in its last batch of the second epoch."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        last = self.trainer.fit_loop.epoch_loop._num_ready_batches_reached()
        if last and (self.global_rank, self.current_epoch) == (1, 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)


class Late(Toy):
    """Learner 1 is told to stop once learner 0 has had its last batch.

    Args:
        schedule: see `Toy`.
        ended: the file by which learner 0 says so.
    """

    def __init__(self, schedule: str, ended: Path) -> None:
        super().__init__(schedule)
        self.ended = ended

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if (self.global_rank, self.current_epoch, batch_idx) == (1, 1, 1):
            while not self.ended.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        last = self.trainer.fit_loop.epoch_loop._num_ready_batches_reached()
        if last and (self.global_rank, self.current_epoch) == (0, 1):
            self.ended.touch()


def told(schedule: str, at: int) -> Toy:
    """Return a module; learner 1 is told to stop in a batch of the second epoch."""
    return Toy(schedule, stop=at if dist.get_rank() == 1 else None)


def run(folder: Path, algorithm: str, *stop: Toy, **options: Any) -> dict[str, Any]:
    """Train what stops, one after the other, and to the end; and without a stop."""
    last, whole = Toy(stop[0].schedule), Toy(stop[0].schedule)
    model = stopping.stopped(folder / "stopped", algorithm, *stop, last, **options)
    wanted = fit(folder / "whole", algorithm, whole, **options)
    return {
        "model": model,
        "whole": wanted,
        "rates": [rate(last), rate(whole)],
        "seen": [each.seen for each in (*stop, last, whole)],
        "losses": [each.losses for each in (*stop, last, whole)],
    }


def runs_to_the_last_batch(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for schedule in SCHEDULES:
        place = folder / schedule
        for name, (algorithm, own, at) in TOGETHER.items():
            end, one = place / name, place / f"{name} one"
            found[f"{schedule} {name}"] = run(
                end, algorithm, told(schedule, at), own=own
            )
            found[f"{schedule} {name} one"] = run(
                one,
                algorithm,
                told(schedule, 0),
                own=dict.fromkeys(own, 1),
                limit_train_batches=1,
            )
        for name, queue in SHARES.items():
            # No learner waits for one that is this far behind.
            own = {"work_queue": queue, "max_staleness": 64}
            late = Late(schedule, folder / f"{schedule} {name}")
            found[f"{schedule} {name} late"] = run(
                place / f"late {name}", "adpsgd", late, own=own
            )
            found[f"{schedule} {name} last"] = run(
                place / f"last {name}", "adpsgd", Last(schedule), own=own
            )
        again = [Late(schedule, folder / f"{schedule} again"), told(schedule, 3)]
        found[f"{schedule} again"] = run(
            place / "again", "adpsgd", *again, own={"work_queue": False}
        )
        found[f"{schedule} one"] = run(
            place / "one",
            "adpsgd",
            Last(schedule),
            own={"work_queue": False},
            limit_train_batches=1,
        )
    return found


@pytest.fixture(scope="module")
def at_the_last_batch(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launch(
        2, runs_to_the_last_batch, tmp_path_factory.mktemp("two"), timeout=400
    )


def goes_on_exactly(found: dict[str, Any], validations: int) -> None:
    """Compare a fit that was stopped after so many validations with a whole one."""
    assert found["model"] == found["whole"]
    assert found["rates"][0] == found["rates"][1]
    first, second, whole = found["losses"]
    assert len(first) == validations
    assert first + second == whole


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", TOGETHER)
def test_learners_that_step_together_stop_before_validation(
    at_the_last_batch: Found, schedule: str, name: str
) -> None:
    for learner in at_the_last_batch:
        goes_on_exactly(learner[f"{schedule} {name}"], validations=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", TOGETHER)
def test_they_stop_where_each_step_is_the_last(
    at_the_last_batch: Found, schedule: str, name: str
) -> None:
    for learner in at_the_last_batch:
        # They agree on the next step, which is the last one of the next epoch.
        goes_on_exactly(learner[f"{schedule} {name} one"], validations=2)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("when", ["late", "last"])
def test_no_batch_or_decay_is_repeated(
    at_the_last_batch: Found, schedule: str, name: str, when: str
) -> None:
    found = [learner[f"{schedule} {name} {when}"] for learner in at_the_last_batch]
    seen = Counter(n for each in found for run in each["seen"][:2] for n in run)
    assert seen == Counter({n: 3 for n in range(64)})
    assert found[0]["model"] == found[1]["model"]
    for each in found:
        assert each["rates"][0] == each["rates"][1]
        assert [len(losses) for losses in each["losses"]] == [1, 2, 3]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_limited_epoch_gets_no_further_batches(
    at_the_last_batch: Found, schedule: str
) -> None:
    for learner in at_the_last_batch:
        found = learner[f"{schedule} one"]
        assert [len(seen) for seen in found["seen"]] == [8, 4, 12]
        assert [len(losses) for losses in found["losses"]] == [1, 2, 3]
        assert found["rates"][0] == found["rates"][1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_batch_is_repeated_after_a_second_stop(
    at_the_last_batch: Found, schedule: str
) -> None:
    """Learner 0 had none left at the first stop, and so has none after the second."""
    found = [learner[f"{schedule} again"] for learner in at_the_last_batch]
    ended, other = ([len(seen) for seen in each["seen"]] for each in found)
    assert ended == [64, 0, 32, 96]
    assert other == [40, 8, 48, 96]
    for each in found:
        assert each["rates"][0] == each["rates"][1]
        assert [len(losses) for losses in each["losses"]] == [1, 0, 2, 3]
