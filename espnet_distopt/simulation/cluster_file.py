"""The module reads what a cluster is like from a file, `cluster.yaml`.

    per_node: 8                       learners of a node
    inside: {latency: 10 us, bandwidth: 20 GB/s}
    between: {latency: 30 us, bandwidth: 100 Gbit/s}
    card: 100 Gbit/s                  shared by all learners of a node
    bus: 60 GB/s                      shared by all messages inside a node
    memory: 100 GB/s                  of a node's host, if messages are staged there
    switch: 400 Gbit/s                shared by all messages between nodes
    step: {fixed: 20 ms, sample: 1.5 ms}
    source: where these figures are from

Everything but `between` may be missing. A bandwidth without a unit is in bytes a
second, a time in seconds. `docs/simulation.md` explains each of them.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import write_text
from espnet_distopt.files.yaml import Lines, read_lines
from espnet_distopt.simulation.network import SHARED, Link, Network

PRESETS = Path(__file__).parent / "clusters"
"""The folder of the clusters that the package knows by name."""

BYTES_A_SECOND = {
    "": 1.0,
    "B/s": 1.0,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "Mbit/s": 1e6 / 8,
    "Gbit/s": 1e9 / 8,
}
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}

KEYS = ("source", "per_node", "inside", "between", *SHARED, "step")


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """How long a learner computes for a step, by the size of its batch.

    Attributes:
        fixed: the seconds that do not depend on the batch: the optimizer, and the
            starting of kernels.
        sample: the seconds of one sample.
    """

    fixed: float = 0.0
    sample: float = 0.0

    def of(self, samples: float) -> float:
        """Return the seconds of a step on a batch of `samples`."""
        return self.fixed + self.sample * samples


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster as a file describes it.

    Attributes:
        network: its links, and what learners share.
        step: how long a step takes; None if the file does not say so.
        source: where the figures are from.
    """

    network: Network
    step: StepTime | None = None
    source: str = ""


def presets() -> list[str]:
    """Return the names of the clusters that the package knows."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_cluster(name: str) -> Cluster:
    """Return the cluster of a file, or of a name that is one of the `presets`.

    Raises:
        InputError: there is no such file or preset; or something in it is wrong or
            contradicts itself. The message names the line.
    """
    path = Path(name)
    if name in presets():
        path = PRESETS / f"{name}.yaml"
    elif not path.exists():
        known = ", ".join(presets())
        raise InputError(f"{name}: no such file, and none of the clusters {known}")
    lines = read_lines(path)
    lines.check_keys(KEYS)
    if "between" not in lines.values:
        raise lines.error("between: is missing, as {latency: 30 us, bandwidth: 1 GB/s}")
    return Cluster(
        network=_network(lines),
        step=_step(lines),
        source=str(lines.values.get("source", "")),
    )


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write a file from which `read_cluster` reads `cluster`, to three digits.

    Raises:
        OSError: it cannot be written.
    """
    network, rows = cluster.network, []
    if cluster.source:
        rows.append(f"source: {json.dumps(cluster.source)}")
    rows.append(f"per_node: {network.per_node}")
    names = ("inside", "between") if network.per_node > 1 else ("between",)
    for name in names:
        link: Link = getattr(network, name)
        latency = f"latency: {link.latency * 1e6:.3g} us"
        rows.append(f"{name}: {{{latency}, bandwidth: {_rate(link.bandwidth)}}}")
    for name in SHARED:
        value: float = getattr(network, name)
        if math.isfinite(value):
            rows.append(f"{name}: {_rate(value)}")
    if cluster.step is not None:
        parts = {"fixed": cluster.step.fixed, "sample": cluster.step.sample}
        words = [f"{name}: {1e3 * value:.3g} ms" for name, value in parts.items()]
        rows.append(f"step: {{{', '.join(words)}}}")
    write_text(path, "\n".join(rows) + "\n")


def _rate(value: float) -> str:
    return f"{float(f'{value / 1e6:.3g}'):g} MB/s"


def _network(lines: Lines) -> Network:
    per_node = lines.values.get("per_node", 1)
    if not isinstance(per_node, int) or isinstance(per_node, bool) or per_node < 1:
        words = f"per_node: expected a number of learners >= 1, not {per_node!r}"
        raise lines.error(words, "per_node")
    for key in ("inside", "bus"):
        if per_node == 1 and key in lines.values:
            words = f"{key}: no message is inside a node, because per_node is 1"
            raise lines.error(words, key)
    links = {
        key: _link(lines, key) for key in ("inside", "between") if key in lines.values
    }
    shared = {key: _bandwidth(lines, key) for key in SHARED if key in lines.values}
    network = Network(per_node=per_node, **links, **shared)  # type: ignore[arg-type]
    _check_order(lines, network)
    return network


def _check_order(lines: Lines, network: Network) -> None:
    """Check that no learner's link is faster than what its messages pass."""
    links = {"between": network.between.bandwidth, "inside": network.inside.bandwidth}
    for link, bandwidth in links.items():
        if link in lines.values and 2 * bandwidth > network.memory:
            line = lines.lines[link]
            raise lines.error(
                "memory: each message passes it twice, so it needs twice the bandwidth "
                f"that one learner's link has on line {line} ({link})",
                "memory",
            )
    for link, shared in ("between", "card"), ("between", "switch"), ("inside", "bus"):
        if link in lines.values and links[link] > getattr(network, shared):
            line = lines.lines[link]
            raise lines.error(
                f"{shared}: all messages that pass it share less bandwidth than one "
                f"learner's link has alone on line {line} ({link})",
                shared,
            )


def _link(lines: Lines, key: str) -> Link:
    inner = _inner(lines, key, ("latency", "bandwidth"))
    if "bandwidth" not in inner.values:
        raise lines.error(f"{key}: has no bandwidth, as 10 GB/s", key)
    latency = _quantity(inner, "latency", SECONDS) if "latency" in inner.values else 0.0
    return Link(latency=latency, bandwidth=_bandwidth(inner, "bandwidth"))


def _step(lines: Lines) -> StepTime | None:
    if "step" not in lines.values:
        return None
    inner = _inner(lines, "step", ("fixed", "sample"))
    seconds = {key: _quantity(inner, key, SECONDS) for key in inner.values}
    if not sum(seconds.values()) > 0:
        raise lines.error("step: takes no time; give fixed, sample, or both", "step")
    return StepTime(**seconds)


def _inner(lines: Lines, key: str, known: tuple[str, ...]) -> Lines:
    inner = lines.values[key]
    if not isinstance(inner, Lines):
        example = ", ".join(f"{name}: ..." for name in known)
        raise lines.error(f"{key}: expected {{{example}}}", key)
    inner.check_keys(known)
    return inner


def _bandwidth(lines: Lines, key: str) -> float:
    value = _quantity(lines, key, BYTES_A_SECOND)
    if value == 0:
        raise lines.error(f"{key}: must be above 0", key)
    return value


def _quantity(lines: Lines, key: str, units: dict[str, float]) -> float:
    """Return a value in the base unit."""
    value: Any = lines.values[key]
    match = re.fullmatch(r"\s*([-+.\deE]+)\s*([A-Za-z/]*)\s*", str(value))
    try:
        number = float(match[1]) * units[match[2]] if match else math.nan
    except (ValueError, KeyError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number < math.inf:
        names = ", ".join(unit for unit in units if unit)
        words = f"{key}: expected a number >= 0, alone or with a unit of {names}, not"
        raise lines.error(f"{words} {value!r}", key)
    return number
