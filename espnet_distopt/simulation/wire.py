"""The module numbers the messages of a simulation and computes when they arrive."""

from collections import Counter

from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.cluster import Network


class Wire:
    """The messages between all pairs of learners, numbered for each pair and direction.

    A message's delay depends on its pair and its number, so it is the same in each run.

    Args:
        clock: the simulation's clock.
        network: the network, which says how long a message takes.
    """

    def __init__(self, clock: Clock, network: Network) -> None:
        self._clock = clock
        self._network = network
        self._sent: Counter[tuple[int, int]] = Counter()

    def arrival(self, sender: int, receiver: int, nbytes: int) -> int:
        """Return the time at which a message that is sent now arrives, in nanoseconds.

        Args:
            sender: the rank that sends it.
            receiver: the rank that receives it.
            nbytes: the size of the message, in bytes.
        """
        number = self._sent[sender, receiver]
        self._sent[sender, receiver] += 1
        seconds = self._network.message(sender, receiver, number, nbytes)
        return self._clock.later(seconds)

    def state_dict(self) -> list[list[int]]:
        """Return [sender, receiver, how many messages it has sent] of each pair."""
        return [[*pair, number] for pair, number in self._sent.items()]

    def load_state_dict(self, state: list[list[int]]) -> None:
        """Restore the state that `state_dict` returned."""
        self._sent = Counter({(a, b): number for a, b, number in state})
