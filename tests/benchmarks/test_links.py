"""These tests cover the links benchmark and the peers that come with torch."""

import links
import pytest
from emulated.learners import Namespace, launch
from emulated.methods import PEERS, MeasuredMethod
from links import FULL, LEARNERS, Case, Size

from espnet_distopt.algorithms import check

SMALL = Size(parameters=1000, seconds=0.01, least=0.1)


def test_every_case_is_possible_and_has_a_name_of_its_own() -> None:
    cases = FULL.cases()
    assert len({case.method.label for case in cases}) == len(cases)
    for case in cases:
        if case.method.name not in {*PEERS, "none"}:
            check(case.method.name, case.method.options, LEARNERS)


@pytest.mark.parametrize("rate", [1000, 100])
def test_blocks_are_measured_whole(rate: int) -> None:
    for case in FULL.cases():
        plan = links.planned(case, FULL, rate)
        assert plan.steps > 0
        assert plan.steps % case.period == 0
        # A delayed average comes within the second block.
        blocks = 2 if "delay" in case.method.options else 1
        assert plan.warm_up == blocks * case.period or case.gossips


def test_a_link_takes_its_time() -> None:
    # The link sends 35 million float32 numbers at 1 Gbit/s.
    assert FULL.link_seconds(1.0, 1000) == pytest.approx(1.12)


def test_the_table_compares_with_the_same_optimizer() -> None:
    def row(method: MeasuredMethod, seconds: float, **case: float) -> links.LinkRow:
        found = [links.LinkFigures(seconds=seconds, cpu=0.0, exchanges=0.0)]
        return links.LinkRow(case=Case(method=method, **case), found=found)

    rows = [
        row(MeasuredMethod(name="none"), 0.01),
        row(MeasuredMethod(name="none", adam=True), 0.02),
        row(MeasuredMethod(name="bmuf_adam", adam=True), 0.03, period=2, models=1e3),
        links.LinkRow(
            case=Case(method=MeasuredMethod(name="DDP")), failure="E: it failed"
        ),
    ]
    lines = links.table(rows, SMALL, rate=100)
    # Sending 1000 models of 4 kB at 100 Mbit/s, every other step, takes 0.16 s.
    assert lines[4].split(" | ")[1:4] == ["0.030", "1.500", "9.00"]
    assert lines[5] == "| DDP | E: it failed |"


@pytest.mark.parametrize("name", ["DDP", "PostLocalSGD", "bare TCP"])
def test_peers_run(name: str) -> None:
    options = {"period": 2} if name == "PostLocalSGD" else {}
    method = MeasuredMethod(name=name, options=options)
    what = links.Measurement(method=method, size=SMALL, warm_up=1, steps=3)
    for figures in launch([Namespace()] * 2, links.measure, what, timeout=60):
        assert figures.seconds > 0.01
        assert (figures.exchanges > 0) == (name == "bare TCP")
