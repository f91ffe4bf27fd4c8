"""The module describes the network of a virtual cluster, and what each message loads.

Ranks are numbered node by node. A message inside a node passes the sending and the
receiving learner's link inside the node, and the bus of the node. A message between
nodes passes their links between nodes, the network cards of both nodes, and the switch.
Both pass the host's memory if the messages are staged there: they are written and read
once on each node. What several messages pass at one time, they share (`wire`).

A random delay depends only on a seed and on the number of the message between its two
learners. So a message that is delayed does not change the delays of others.
"""

import math
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.compute import log_normal

Resource = Hashable
"""The name of something whose bandwidth is limited."""

Sent = tuple[int, int, float]
"""A sender, a receiver, and the bytes that pass between them."""

SHARED = ("card", "bus", "memory", "switch")
"""The bandwidths that learners share."""


class Traffic(NamedTuple):
    """What a communication costs.

    Attributes:
        load: resource -> the bytes that pass it; without those that are unlimited.
        latency: the seconds that pass after the last byte has left.
    """

    load: dict[Resource, float]
    latency: float


@dataclass(frozen=True, kw_only=True)
class Link:
    """A full-duplex link.

    Attributes:
        latency: the seconds that an empty message takes one way.
        bandwidth: the bytes per second in each direction.

    Raises:
        InputError: the latency is below 0, or the bandwidth is not above 0.
    """

    latency: float = 1e-4
    bandwidth: float = 1.25e9

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf:
            raise InputError(f"latency must be >= 0, not {self.latency}")
        if not self.bandwidth > 0:
            raise InputError(f"bandwidth must be > 0, not {self.bandwidth}")


@dataclass(frozen=True, kw_only=True)
class Network:
    """The links between learners, and what they share. Bandwidths are bytes a second.

    Attributes:
        inside: the link between two learners of one node, which each learner has for
            itself.
        between: the link between two learners of different nodes, for each learner.
        per_node: the number of learners of a node.
        card: the bandwidth of a node's network card in each direction, which all
            learners of the node share.
        bus: the bandwidth that all messages inside a node share.
        memory: the bandwidth of a node's host memory, which each message passes twice
            on each of its nodes.
        switch: the bandwidth that all messages between nodes share; an oversubscribed
            switch has less than the sum of the cards.
        spread: sigma of the log-normal factor on a message's seconds. It does not apply
            to collectives, which average over many messages.
        loss: the probability that a transmission of a message is lost. A reliable
            transport sends the message again, so a loss is a delay. It does not apply
            to collectives.
        retry: the seconds until a lost message is sent again.
        seed: the seed of the factors and the losses.

    Raises:
        InputError: a figure is out of its range, or a node has no learners.
    """

    inside: Link = field(default_factory=lambda: Link(latency=1e-5, bandwidth=2e10))
    between: Link = field(default_factory=Link)
    per_node: int = 1
    card: float = math.inf
    bus: float = math.inf
    memory: float = math.inf
    switch: float = math.inf
    spread: float = 0.0
    loss: float = 0.0
    retry: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_node < 1:
            raise InputError(f"per_node must be >= 1, not {self.per_node}")
        for name in SHARED:
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be > 0, not {getattr(self, name)}")
        if not self.spread >= 0:
            raise InputError(f"the spread of messages must be >= 0, not {self.spread}")
        if not 0 <= self.loss < 1:
            raise InputError(f"the loss must be in [0, 1), not {self.loss}")
        if not self.retry >= 0:
            raise InputError(f"seconds until a retry must be >= 0, not {self.retry}")

    def for_larger_messages(self, factor: float) -> "Network":
        """Return a network on which a message takes as long as one `factor` as large.

        The bandwidths are divided by `factor`; the latencies stay.
        """
        inside, between = (
            replace(link, bandwidth=link.bandwidth / factor)
            for link in (self.inside, self.between)
        )
        shared = {name: getattr(self, name) / factor for name in SHARED}
        network = replace(self, inside=inside, between=between)
        return replace(network, **shared)

    def capacity(self, resource: Resource) -> float:
        """Return the bytes a second of a resource that `traffic` has named."""
        assert isinstance(resource, tuple)
        return float(_CAPACITIES[resource[0]](self))

    def traffic(self, sent: Iterable[Sent]) -> Traffic:
        """Return what messages cost that are sent at one time."""
        load: dict[Resource, float] = {}
        latency = 0.0
        for sender, receiver, nbytes in sent:
            latency = max(latency, self._link(sender, receiver).latency)
            for resource, times in self._path(sender, receiver):
                if math.isfinite(self.capacity(resource)):
                    load[resource] = load.get(resource, 0.0) + nbytes * times
        return Traffic(load, latency)

    def _link(self, sender: int, receiver: int) -> Link:
        same = sender // self.per_node == receiver // self.per_node
        return self.inside if same else self.between

    def _path(self, sender: int, receiver: int) -> list[tuple[Resource, int]]:
        """Return what a message passes, and how often."""
        source, target = sender // self.per_node, receiver // self.per_node
        if source == target:
            return [
                (("sends inside", sender), 1),
                (("receives inside", receiver), 1),
                (("bus", source), 1),
                (("memory", source), 2),
            ]
        return [
            (("sends between", sender), 1),
            (("receives between", receiver), 1),
            (("card sends", source), 1),
            (("card receives", target), 1),
            (("switch",), 1),
            (("memory", source), 2),
            (("memory", target), 2),
        ]

    def message(self, sender: int, receiver: int, number: int, nbytes: int) -> Traffic:
        """Return what a message between two learners costs.

        Args:
            sender: the rank that sends it.
            receiver: the rank that receives it.
            number: how many messages `sender` has sent to `receiver` before.
            nbytes: the size of the message, in bytes.
        """
        key = f"{self.seed} message {sender} {receiver} {number}"
        factor = log_normal(self.spread, key)
        load, latency = self.traffic([(sender, receiver, nbytes * factor)])
        return Traffic(load, latency * factor + self.retry * self._losses(key))

    def _losses(self, key: str) -> int:
        """Return how often the message is lost before it arrives."""
        if self.loss == 0:
            return 0
        source, lost = random.Random(f"{key} loss"), 0
        while source.random() < self.loss:
            lost += 1
        return lost

    def seconds(self, traffic: Traffic) -> float:
        """Return the seconds that a communication takes if there is no other."""
        times = (nbytes / self.capacity(name) for name, nbytes in traffic.load.items())
        return max(times, default=0.0) + traffic.latency


_CAPACITIES: dict[str, Callable[[Network], float]] = {
    "sends inside": lambda network: network.inside.bandwidth,
    "receives inside": lambda network: network.inside.bandwidth,
    "sends between": lambda network: network.between.bandwidth,
    "receives between": lambda network: network.between.bandwidth,
    "card sends": lambda network: network.card,
    "card receives": lambda network: network.card,
    "bus": lambda network: network.bus,
    "memory": lambda network: network.memory,
    "switch": lambda network: network.switch,
}
