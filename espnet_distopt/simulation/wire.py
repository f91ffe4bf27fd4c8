"""The messages of a simulation: each has its pair, its number and its delay."""

from collections import Counter

from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.cluster import Network


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

    def state_dict(self) -> list[list[int]]:
        """Return how many messages each pair has sent: (sender, receiver, number)."""
        return [[*pair, number] for pair, number in self._sent.items()]

    def load_state_dict(self, state: list[list[int]]) -> None:
        """Write back what `state_dict` returned."""
        self._sent = Counter({(a, b): number for a, b, number in state})
