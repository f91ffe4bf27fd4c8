"""These tests run the straggler benchmark on real processes."""

import pytest
from emulated.learners import LearnersFailedError, Namespace, launch
from emulated.methods import MeasuredMethod
from straggling import plain
from straggling.frame import Figures, Row, Run, table


def run(name: str, slowdown: float, steps: int, queue: bool) -> Run:
    return Run(
        method=MeasuredMethod(name=name),
        learners=plain.LEARNERS,
        slowdown=slowdown,
        steps=steps,
        queue=queue,
        slow=1,
        once=True,
    )


def test_a_queue_deals_out_every_step_once() -> None:
    asked = run("adpsgd", 4.0, 24, queue=True)
    epochs = launch([Namespace()] * plain.LEARNERS, plain.train, asked, timeout=60)
    made = [len(epoch.steps) for epoch in epochs]
    assert sum(made) == asked.steps
    assert made[-1] < min(made[:-1])  # The last one is slow.
    assert all(sorted(epoch.steps) == epoch.steps for epoch in epochs)


def test_a_failure_is_one_line() -> None:
    with pytest.raises(LearnersFailedError, match=r"InputError: unknown algorithm.*"):
        plain.measure(run("nonsense", 1.0, 4, queue=False))


def test_the_bound_counts_who_waits_for_the_slow_one() -> None:
    found = {row.label: row.run for row in plain.rows(10.0, quick=True)}
    assert found["adpsgd, queue"].bound == pytest.approx(0.775)
    assert found["hadpsgd (per_node 2), queue"].bound == pytest.approx(0.55)
    assert found["DDP"].bound == pytest.approx(0.1)


def test_the_table_compares_with_equal_learners() -> None:
    rows = plain.rows(10.0, quick=True)[:3]
    for row, speed in zip(rows, (40.0, 30.0, 28.0), strict=True):
        row.found = [Figures(middle=speed, whole=speed)] * 2
    rows.append(Row(label="DDP", run=rows[-1].run, failure="not installed: x"))
    lines = table(plain.LOOP, rows)
    spread = "0.700 (0.700 - 0.700) | 0.90"
    assert lines[3] == f"| adpsgd, queue | {spread} | {spread} |  |"
    assert lines[4] == "| DDP | not installed: x |"
