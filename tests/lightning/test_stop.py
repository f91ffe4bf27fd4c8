"""A fit that is stopped within an epoch, or killed after one, and goes on."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.lightning import stopping
from tests.lightning.stopping import fit
from tests.lightning.toy import Toy
from tests.processes import launch

EXACT = ["allreduce", "bmuf_adam"]

QUEUED = {
    "between batches": (3, 0.0, signal.SIGTERM),
    "when the other has no batch left": (1, 0.1, signal.SIGTERM),
    "as distopt slurm does": (3, 0.0, signal.SIGUSR1),
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
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(2, runs, tmp_path_factory.mktemp("two"), timeout=200)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("kind", ["after", "within"])
def test_what_goes_on_is_the_uninterrupted_run(
    two: list[dict[str, Any]], name: str, kind: str
) -> None:
    for learner in two:
        assert learner[name][kind] == learner[name][f"whole {kind}"]


@pytest.mark.parametrize("kind", QUEUED)
def test_no_batch_is_lost_or_repeated(two: list[dict[str, Any]], kind: str) -> None:
    runs = [learner[kind] for learner in two]
    seen = Counter(n for _, first, second in runs for n in [*first, *second])
    assert seen == Counter({n: 3 for n in range(64)})
    assert runs[0][0] == runs[1][0]
