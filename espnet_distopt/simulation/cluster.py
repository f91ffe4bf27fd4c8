"""The module describes a virtual cluster: how long computing and sending take.

All times are seconds of virtual time. A random duration depends only on a seed and on
what it belongs to: the number of a learner's step, or the number of a message between
two learners. It does not depend on the order in which durations are asked for. So a
learner that is delayed does not change the durations of the others.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from espnet_distopt.errors import InputError


def _log_normal(spread: float, key: str) -> float:
    """Return a log-normal factor with median 1, which depends on `key` only."""
    if spread == 0:
        return 1.0
    return random.Random(key).lognormvariate(0.0, spread)


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How long a learner computes for one step.

    Attributes:
        seconds: the seconds of a step; their median if `spread` is above 0.
        spread: sigma of the log-normal factor on a step's seconds; with 0 all steps
            take equally long.
        trace: the measured seconds of real steps. If there are any, each step takes the
            seconds of one of them, drawn at random; `seconds` and `spread` are ignored.
        slowdown: learner -> the factor by which its steps take longer; a learner that
            is missing is not slowed.
        seed: the seed of all random durations.

    Raises:
        InputError: a step takes no time, or the spread is below 0.
    """

    seconds: float = 0.3
    spread: float = 0.0
    trace: Sequence[float] = ()
    slowdown: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise InputError(f"a step must take seconds > 0, not {self.seconds}")
        if not self.spread >= 0:
            raise InputError(f"the spread of steps must be >= 0, not {self.spread}")
        for number, seconds in enumerate(self.trace):
            if not seconds > 0:
                raise InputError(
                    f"step {number} of the trace must take seconds > 0, not {seconds}"
                )
        for rank, factor in self.slowdown.items():
            if not factor > 0:
                raise InputError(f"slowdown of learner {rank} must be > 0: {factor}")

    def of(self, rank: int, step: int) -> float:
        """Return the seconds that learner `rank` computes for its step `step`."""
        key = f"{self.seed} step {rank} {step}"
        if self.trace:
            seconds = random.Random(key).choice(self.trace)
        else:
            seconds = self.seconds * _log_normal(self.spread, key)
        return seconds * self.slowdown.get(rank, 1.0)


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
        if not self.latency >= 0:
            raise InputError(f"latency must be >= 0, not {self.latency}")
        if not self.bandwidth > 0:
            raise InputError(f"bandwidth must be > 0, not {self.bandwidth}")

    def seconds(self, nbytes: float) -> float:
        """Return the seconds that a message of `nbytes` bytes takes."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Network:
    """The links between learners: one kind inside a node, another between nodes.

    Attributes:
        inside: the link between two learners of one node.
        between: the link between two learners of different nodes.
        per_node: the number of learners of a node; ranks are numbered node by node.
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
    spread: float = 0.0
    loss: float = 0.0
    retry: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_node < 1:
            raise InputError(f"per_node must be >= 1, not {self.per_node}")
        if not self.spread >= 0:
            raise InputError(f"the spread of messages must be >= 0, not {self.spread}")
        if not 0 <= self.loss < 1:
            raise InputError(f"the loss must be in [0, 1), not {self.loss}")
        if not self.retry >= 0:
            raise InputError(f"seconds until a retry must be >= 0, not {self.retry}")

    def message(self, sender: int, receiver: int, number: int, nbytes: int) -> float:
        """Return the seconds that a message between two learners takes.

        Args:
            sender: the rank that sends it.
            receiver: the rank that receives it.
            number: how many messages `sender` has sent to `receiver` before.
            nbytes: the size of the message, in bytes.
        """
        same_node = sender // self.per_node == receiver // self.per_node
        link = self.inside if same_node else self.between
        key = f"{self.seed} message {sender} {receiver} {number}"
        seconds = link.seconds(nbytes) * _log_normal(self.spread, key)
        return seconds + self.retry * self._losses(key)

    def _losses(self, key: str) -> int:
        """Return how often the message is lost before it arrives."""
        if self.loss == 0:
            return 0
        source, lost = random.Random(f"{key} loss"), 0
        while source.random() < self.loss:
            lost += 1
        return lost

    def all_reduce(self, ranks: Sequence[int], nbytes: int) -> float:
        """Return the seconds of a ring all-reduce of `nbytes` among `ranks`."""
        size = len(ranks)
        return 2 * (size - 1) * self._slowest(ranks).seconds(nbytes / size)

    def all_pairs(self, ranks: Sequence[int], nbytes: float) -> float:
        """Return the seconds in which each of `ranks` sends `nbytes` to each other.

        A learner posts all its messages at once, and they share its outgoing bandwidth.
        They leave one after the other, those inside the node first, each at the
        bandwidth of its link. A message arrives its link's latency after it has left;
        meanwhile the next ones leave. With a messages inside the node, b messages
        between nodes, n bytes in each, bandwidths B and latencies L this takes

            max(a n / B_in + L_in,  a n / B_in + b n / B_between + L_between)

        seconds, where the first term counts if a > 0 and the second if b > 0. Receiving
        takes no further time: links are full-duplex, and a learner receives as many
        bytes as it sends. The result is the time of the learner that takes longest.
        """
        return max(self._to_all(rank, ranks, nbytes) for rank in ranks)

    def _to_all(self, rank: int, ranks: Sequence[int], nbytes: float) -> float:
        """Return the seconds until the messages of `rank` have arrived."""
        node = rank // self.per_node
        near = sum(other // self.per_node == node for other in ranks) - 1
        left, arrived = 0.0, 0.0
        for link, count in (self.inside, near), (self.between, len(ranks) - 1 - near):
            if count:
                left += count * nbytes / link.bandwidth
                arrived = max(arrived, left + link.latency)
        return arrived

    def broadcast(self, ranks: Sequence[int], nbytes: int) -> float:
        """Return the seconds of a broadcast in which each of `ranks` passes data on."""
        if len(ranks) == 1:
            return 0.0
        link = self._slowest(ranks)
        return (len(ranks) - 1) * link.latency + nbytes / link.bandwidth

    def _slowest(self, ranks: Sequence[int]) -> Link:
        nodes = {rank // self.per_node for rank in ranks}
        return self.between if len(nodes) > 1 else self.inside
