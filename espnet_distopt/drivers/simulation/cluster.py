"""The virtual cluster of a simulation: its clock, how long computing and sending take.

All times are seconds of virtual time. A duration depends on nothing but the model's
seed and what it is the duration of (which learner's which step, which message), never
on the order of questions: so one learner's delays do not shift another's.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from espnet_distopt.errors import InputError


def _log_normal(spread: float, key: str) -> float:
    """Return a factor whose median is 1; `key` decides which."""
    if spread == 0:
        return 1.0
    return random.Random(key).lognormvariate(0.0, spread)


class Clock:
    """A virtual clock with its events, ordered by (nanoseconds, sequence number).

    Attributes:
        now: nanoseconds; an integer, so that equal times are equal.
    """

    def __init__(self) -> None:
        self.now = 0
        self._number = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []

    def later(self, seconds: float) -> int:
        """Return the time, in nanoseconds, that is `seconds` from now."""
        return self.now + round(seconds * 1e9)

    def at(self, nanoseconds: int, act: Callable[[], None]) -> None:
        """Let `act` happen at a time, after everything else asked for that time."""
        self._number += 1
        heapq.heappush(self._events, (nanoseconds, self._number, act))

    def tick(self) -> bool:
        """Let the next event happen; return False if there is none."""
        if not self._events:
            return False
        self.now, _, act = heapq.heappop(self._events)
        act()
        return True


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How long a learner computes for one step.

    Attributes:
        seconds: of a step; the median where steps vary.
        spread: sigma of a log-normal factor; 0 makes all steps equal.
        slowdown: learner -> how many times slower it is; others are not.
        seed: of the factors.

    Raises:
        InputError: a step that takes no time, or a spread below 0.
    """

    seconds: float = 0.3
    spread: float = 0.0
    slowdown: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise InputError(f"a step must take seconds > 0, not {self.seconds}")
        if not self.spread >= 0:
            raise InputError(f"the spread of steps must be >= 0, not {self.spread}")
        for rank, factor in self.slowdown.items():
            if not factor > 0:
                raise InputError(f"slowdown of learner {rank} must be > 0: {factor}")

    def of(self, rank: int, step: int) -> float:
        """Return the seconds that learner `rank` computes for its step `step`."""
        factor = _log_normal(self.spread, f"{self.seed} step {rank} {step}")
        return self.seconds * self.slowdown.get(rank, 1.0) * factor


@dataclass(frozen=True, kw_only=True)
class Link:
    """A full-duplex link. latency: seconds one way; bandwidth: bytes a second.

    Raises:
        InputError: latency below 0, or no bandwidth.
    """

    latency: float = 1e-4
    bandwidth: float = 1.25e9

    def __post_init__(self) -> None:
        if not self.latency >= 0:
            raise InputError(f"latency must be >= 0, not {self.latency}")
        if not self.bandwidth > 0:
            raise InputError(f"bandwidth must be > 0, not {self.bandwidth}")

    def seconds(self, nbytes: float) -> float:
        """Return how long a message of `nbytes` takes."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Network:
    """Links between learners: one kind inside a node, one between nodes.

    Attributes:
        inside: link between two learners of one node.
        between: link between two learners of different nodes.
        per_node: learners in a node; ranks are numbered node by node.
        spread: sigma of a log-normal factor on each message's time; collectives, which
            average over many messages, have none.
        seed: of the factors.

    Raises:
        InputError: a node without learners, or a spread below 0.
    """

    inside: Link = field(default_factory=lambda: Link(latency=1e-5, bandwidth=2e10))
    between: Link = field(default_factory=Link)
    per_node: int = 1
    spread: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_node < 1:
            raise InputError(f"per_node must be >= 1, not {self.per_node}")
        if not self.spread >= 0:
            raise InputError(f"the spread of messages must be >= 0, not {self.spread}")

    def message(self, sender: int, receiver: int, number: int, nbytes: int) -> float:
        """Return the seconds of the pair's message `number`, counted per direction."""
        same_node = sender // self.per_node == receiver // self.per_node
        link = self.inside if same_node else self.between
        key = f"{self.seed} message {sender} {receiver} {number}"
        return link.seconds(nbytes) * _log_normal(self.spread, key)

    def all_reduce(self, ranks: Sequence[int], nbytes: int) -> float:
        """Return the seconds of a ring all-reduce of `nbytes` among `ranks`."""
        return 2 * self.in_turn(ranks, nbytes / len(ranks))

    def in_turn(self, ranks: Sequence[int], nbytes: float) -> float:
        """Return the seconds in which each of `ranks` sends `nbytes` to each other."""
        return (len(ranks) - 1) * self._slowest(ranks).seconds(nbytes)

    def broadcast(self, ranks: Sequence[int], nbytes: int) -> float:
        """Return the seconds of a broadcast that is passed on along a ring."""
        if len(ranks) == 1:
            return 0.0
        link = self._slowest(ranks)
        return (len(ranks) - 1) * link.latency + nbytes / link.bandwidth

    def _slowest(self, ranks: Sequence[int]) -> Link:
        nodes = {rank // self.per_node for rank in ranks}
        return self.between if len(nodes) > 1 else self.inside


class Wire:
    """Numbers the messages of each pair, and says when one sent now arrives."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self._clock = clock
        self._network = network
        self._sent: Counter[tuple[int, int]] = Counter()

    def arrival(self, sender: int, receiver: int, nbytes: int) -> int:
        """Return the time, in nanoseconds, of arrival."""
        number = self._sent[sender, receiver]
        self._sent[sender, receiver] += 1
        seconds = self._network.message(sender, receiver, number, nbytes)
        return self._clock.later(seconds)
