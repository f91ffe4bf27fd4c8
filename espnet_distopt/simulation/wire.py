"""The module numbers the messages of a simulation and brings them to their ends."""

from collections import Counter
from collections.abc import Callable

from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.flows import Flows
from espnet_distopt.simulation.network import Network, Traffic


class Wire:
    """The messages between all pairs of learners, numbered for each pair and direction.

    A message's factor and losses depend on its pair and its number, so they are the
    same in each run. How long it takes depends also on the messages beside it.

    Args:
        clock: the simulation's clock.
        network: the network, which says what a message loads.
    """

    def __init__(self, clock: Clock, network: Network) -> None:
        self._clock = clock
        self._network = network
        self._flows = Flows(clock, network.capacity)
        self._sent: Counter[tuple[int, int]] = Counter()

    def news(self, sender: int, receiver: int) -> int:
        """Return the time, in nanoseconds, at which an empty message arrives."""
        return self._clock.later(self._next(sender, receiver, 0).latency)

    def send(
        self, sender: int, receiver: int, nbytes: int, arrive: Callable[[], None]
    ) -> None:
        """Send a message now, and call `arrive` when the whole of it has arrived.

        Args:
            sender: the rank that sends it.
            receiver: the rank that receives it.
            nbytes: the size of the message, in bytes.
            arrive: the function that is called.
        """
        self.begin(self._next(sender, receiver, nbytes), arrive)

    def begin(self, traffic: Traffic, end: Callable[[], None]) -> None:
        """Begin a communication now, and call `end` when it has ended."""

        def left() -> None:
            self._clock.at(self._clock.later(traffic.latency), end)

        self._flows.begin(traffic.load, left)

    def _next(self, sender: int, receiver: int, nbytes: int) -> Traffic:
        number = self._sent[sender, receiver]
        self._sent[sender, receiver] += 1
        return self._network.message(sender, receiver, number, nbytes)

    def state_dict(self) -> list[list[int]]:
        """Return [sender, receiver, how many messages it has sent] of each pair."""
        return [[*pair, number] for pair, number in self._sent.items()]

    def load_state_dict(self, state: list[list[int]]) -> None:
        """Restore the state that `state_dict` returned."""
        self._sent = Counter({(a, b): number for a, b, number in state})
