"""These tests run the straggler benchmark on real processes."""

import pytest
import straggler
from emulated.learners import LearnersFailedError, Namespace, launch
from emulated.methods import MeasuredMethod
from emulated.straggler_runs import LEARNERS, StragglerRun, runs


def test_a_queue_deals_out_every_step_once() -> None:
    run = StragglerRun(
        method=MeasuredMethod(name="adpsgd"), slowdown=4.0, steps=24, queue=True, slow=1
    )
    epochs = launch([Namespace()] * LEARNERS, straggler.train, run, timeout=60)
    made = [len(epoch.steps) for epoch in epochs]
    assert sum(made) == run.steps
    assert made[-1] < min(made[:-1])  # The last one is slow.
    assert all(sorted(epoch.steps) == epoch.steps for epoch in epochs)


def test_a_failure_is_one_line() -> None:
    run = StragglerRun(method=MeasuredMethod(name="nonsense"), slowdown=1.0, steps=4)
    with pytest.raises(LearnersFailedError, match=r"InputError: unknown algorithm.*"):
        straggler.figures(run)


def test_the_bound_counts_who_waits_for_the_slow_one() -> None:
    found = {run.label: run for run in runs(10.0, quick=True)}
    assert found["adpsgd, queue"].bound == pytest.approx(0.775)
    assert found["hadpsgd (per_node 2), queue"].bound == pytest.approx(0.55)
    assert found["DDP"].bound == pytest.approx(0.1)


def test_the_table_compares_with_equal_learners() -> None:
    rows = [straggler.Row(run=run) for run in runs(10.0, quick=True)[:3]]
    for row, speed in zip(rows, (40.0, 30.0, 28.0), strict=True):
        row.found = [straggler.Figures(middle=speed, whole=speed, exchanges=0)] * 2
    rows.append(straggler.Row(run=rows[-1].run, failure="not installed: x"))
    lines = straggler.table(rows)
    spread = "0.700 (0.700 - 0.700) | 0.90"
    assert lines[3] == f"| adpsgd, queue | {spread} | {spread} |  |"
    assert lines[4] == "| adpsgd, queue | not installed: x |"
