"""What the pictures of a report show, and that they may stand on one page."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.monitoring.duration import TimeUnit
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.figures import (
    compare,
    learners,
    losses,
    shares,
    validations,
)

from .written import line, pair, step, write

HOURS = TimeUnit("hours", 3600)


def experiment(directory: Path) -> Experiment:
    """Two learners, two validated epochs, in which learner 1 dies and returns."""
    lines = pair(
        line("begin", 0),
        step(30, 15, loss=4.0),
        line("epoch", 20, valid_loss=3.5),
        step(30, 3620, epoch=2, loss=3.0, wait_time=7.5),
        line("epoch", 3630, epoch=2, valid_loss=3.0),
    )
    lines[0].insert(2, line("members", 16, members="0"))
    lines[0].insert(3, line("members", 18, members="0,1"))
    found = Experiment.read(write(directory, *lines), whole=True)
    assert found is not None
    return found


def test_a_validation_counts_the_utterances_of_all_learners(tmp_path: Path) -> None:
    found = list(validations(experiment(tmp_path), HOURS))
    assert found == [
        (pytest.approx(20 / 3600), 240, 3.5),
        (pytest.approx(3630 / 3600), 480, 3.0),
    ]


def test_shares_are_of_the_whole_training(tmp_path: Path) -> None:
    found = shares(experiment(tmp_path))
    # Two lines of 15 s: 0.3 s of each in collectives; 0.75 and 7.5 s of waiting.
    assert found["communicates"] == pytest.approx([0.02, 0.02])
    assert found["waits"] == pytest.approx([0.275, 0.275])
    assert found["computes"] == pytest.approx([0.705, 0.705])


def test_shares_leave_out_what_was_spent_in_no_time_of_training(tmp_path: Path) -> None:
    failed = line("end", 25, error="ValueError", comm_time=9.0, wait_time=1.0)
    write(tmp_path, *pair(line("begin", 0), step(30, 15), failed))
    found = Experiment.read(tmp_path, whole=True)
    assert found is not None
    assert shares(found)["communicates"] == pytest.approx([0.02, 0.02])
    assert shares(found)["waits"] == pytest.approx([0.05, 0.05])


def test_shares_of_learners_that_have_not_trained(tmp_path: Path) -> None:
    write(tmp_path, *pair(line("begin", 0)))
    found = Experiment.read(tmp_path, whole=True)
    assert found is not None
    assert list(shares(found).values()) == [[0.0, 0.0]] * 3
    assert "none" in learners(found)


def test_pictures_are_svg_with_ids_of_their_own(tmp_path: Path) -> None:
    each = [experiment(tmp_path / name / "asr") for name in ("a", "b")]
    drawn = [losses(dict(zip("ab", each, strict=True))), *map(learners, each)]
    ids = []
    for picture in drawn:
        ElementTree.fromstring(picture)
        # Groups such as figure_1 are named alike, and nothing refers to them.
        ids += re.findall(r'<(?:clipPath|path|symbol) id="(\w+)"', picture)
    assert len(ids) == len(set(ids)) > 0


def test_a_death_and_a_return_are_drawn(tmp_path: Path) -> None:
    died = experiment(tmp_path / "a")
    assert len(died.changes) == 2
    lived = Experiment(died.directory, {0: died.learners[1], 1: died.learners[1]})
    dashes = [p.count("stroke-dasharray") for p in (learners(died), learners(lived))]
    # Two changes, each in two pictures.
    assert dashes[0] - dashes[1] == 4


def test_the_axis_of_a_short_training_is_not_in_hours(tmp_path: Path) -> None:
    lines = pair(line("begin", 0), step(30, 7200), line("epoch", 7200, valid_loss=3.5))
    long = Experiment.read(write(tmp_path / "long", *lines), whole=True)
    short = experiment(tmp_path / "short")
    assert long is not None
    assert ">minutes<" in losses({"a": short}) and ">hours<" in losses({"b": long})
    assert ">minutes<" not in losses({"a": short, "b": long})


@pytest.mark.parametrize(
    ("name", "magic"),
    [
        ("a.png", b"\x89PNG"),
        ("a.PNG", b"\x89PNG"),
        ("a", b"\x89PNG"),
        ("a.pdf", b"%PDF"),
        ("a.svg", b"<?xml"),
    ],
)
def test_the_ending_says_the_format(name: str, magic: bytes, tmp_path: Path) -> None:
    compare([experiment(tmp_path)], tmp_path / name, "Losses")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"a\.bmp: a plot's file ends in one of \.png,"
    ):
        compare([experiment(tmp_path)], tmp_path / "a.bmp", "Losses")
    assert not list(tmp_path.glob("*.bmp"))
