"""These tests check what is read from cluster files, and the lines of mistakes."""

from dataclasses import asdict
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.cluster_file import (
    StepTime,
    presets,
    read_cluster,
    write_cluster,
)
from espnet_distopt.simulation.network import Link, Network

WHOLE = """\
source: measured on a Monday
per_node: 4
inside: {latency: 10 us, bandwidth: 20 GB/s}
between: {latency: 3e-5, bandwidth: 10 Gbit/s}
card: 25 Gbit/s
bus: 6e10
memory: 100GB/s
switch: 800 Mbit/s
step: {fixed: 20 ms, sample: 0.0015}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return str(path)


def test_units(tmp_path: Path) -> None:
    text = WHOLE.replace("800 Mbit/s", "100 Gbit/s")
    found = read_cluster(write(tmp_path, text))
    assert found.network == Network(
        inside=Link(latency=10 * 1e-6, bandwidth=2e10),
        between=Link(latency=3e-5, bandwidth=1.25e9),
        per_node=4,
        card=3.125e9,
        bus=6e10,
        memory=1e11,
        switch=12.5e9,
    )
    assert found.step == StepTime(fixed=0.02, sample=0.0015)
    assert found.step.of(10) == pytest.approx(0.035)
    assert found.source == "measured on a Monday"


@pytest.mark.parametrize(
    "text", [WHOLE.replace("800 Mbit/s", "1e17"), "between: {bandwidth: 1 GB/s}"]
)
def test_what_is_written_is_read(text: str, tmp_path: Path) -> None:
    """To three digits."""
    found = read_cluster(write(tmp_path, text))
    write_cluster(found, tmp_path / "again.yaml")
    again = read_cluster(str(tmp_path / "again.yaml"))
    assert (again.source, again.step) == (found.source, found.step)
    network, rough = (asdict(each.network) for each in (found, again))
    for name in ("inside", "between"):
        assert rough.pop(name) == pytest.approx(network.pop(name), rel=5e-3)
    assert rough == pytest.approx(network, rel=5e-3)


def test_what_is_missing_is_not_shared(tmp_path: Path) -> None:
    found = read_cluster(write(tmp_path, "between: {bandwidth: 1 GB/s}"))
    assert found.network == Network(between=Link(latency=0, bandwidth=1e9))
    assert found.step is None


@pytest.mark.parametrize("name", presets())
def test_presets_name_their_source(name: str) -> None:
    assert read_cluster(name).source


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WHOLE, "8: switch: all messages that pass it share less bandwidth than one "),
        ("between: {bandwidth: 1}\ncards: 3\n", "2: cards: unknown; allowed: source, "),
        ("between: {bandwidth: 1}\ncard: fast\n", "2: card: expected a number >= 0, "),
        ("between: {bandwidth: 1}\ncard: 3 Gb\n", "2: card: expected a number >= 0, "),
        ("between: {bandwidth: 1}\ncard: 0\n", "2: card: must be above 0"),
        ("between: {bandwidth: -1}\n", "1: bandwidth: expected a number >= 0, "),
        ("between: {latency: 1}\n", "1: between: has no bandwidth"),
        ("between: 3\n", r"1: between: expected \{latency: ..., bandwidth: ...\}"),
        ("per_node: 2\n", "1: between: is missing"),
        ("between: {bandwidth: 1}\nper_node: 0\n", "2: per_node: expected a number"),
        ("between: {bandwidth: 1}\nper_node: x\n", "2: per_node: expected a number"),
        ("between: {bandwidth: 1}\nbus: 1\n", "2: bus: no message is inside a node"),
        ("between: {bandwidth: 9}\n\ncard: 3\n", "3: card: .* on line 1 .between."),
        ("between: {bandwidth: 9}\nmemory: 17\n", "2: memory: .* on line 1 .between."),
        ("between: {bandwidth: 1}\nstep: {}\n", "2: step: takes no time"),
        ("between: {bandwidth: 1}\nstep: {b: 1}\n", "2: b: unknown; allowed: fixed, "),
        ("between: {bandwidth: 1}\ncard: 3\ncard: 4\n", "3: card: is on line 2 alread"),
        ("between: {bandwidth: 1}\ncard: [\n", "3: .*expected the node content"),
        ("- 1\n", "1: expected `key: value` lines"),
        ("", "1: expected `key: value` lines"),
    ],
)
def test_mistakes_are_told_with_their_line(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InputError, match=f"cluster.yaml:{words}") as caught:
        read_cluster(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_no_such_file_names_the_known_clusters() -> None:
    with pytest.raises(InputError, match=r"no such file, and none of .*ibm"):
        read_cluster("nowhere.yaml")
