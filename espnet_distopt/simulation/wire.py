"""The messages of a simulation: their numbers, and how long they take.

Each communication is a flow. Flows that pass the same resource at one time share its
bandwidth max-min fairly; the shares are computed anew whenever a flow begins or ends.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

from espnet_distopt.simulation.clock import Clock
from espnet_distopt.simulation.network import Network, Resource, Traffic

ALIKE = 1 + 1e-12
"""Levels whose ratio is at most this are one level, which rounding has split."""


class Flow:
    """A communication that is under way.

    Attributes:
        weights: resource -> the bytes that pass it for each byte of the flow's own
            progress; the largest of them is 1.
        left: the bytes that are left at time `since`.
        rate: the bytes a second at which the flow goes on.
        since: the time, in nanoseconds, at which `rate` began.
        done: the function that is called when nothing is left.
        version: how often the rate has changed, by which an end that was planned at an
            older rate is known.
    """

    __slots__ = ("done", "left", "rate", "since", "version", "weights")

    def __init__(
        self, load: Mapping[Resource, float], now: int, done: Callable[[], None]
    ) -> None:
        self.left = max(load.values())
        self.weights = {name: nbytes / self.left for name, nbytes in load.items()}
        self.rate = 0.0
        self.since = now
        self.done = done
        self.version = 0

    def change(self, rate: float, now: int) -> None:
        """Go on at another rate, from `now` on."""
        self.left = max(self.left - self.rate * (now - self.since) * 1e-9, 0.0)
        self.rate, self.since = rate, now
        self.version += 1


class Flows:
    """All flows that are under way in a simulation."""

    def __init__(self, clock: Clock, capacity: Callable[[Resource], float]) -> None:
        self._clock = clock
        self._capacity = cache(capacity)
        # Dictionaries in place of sets, because their order is that of insertion.
        self._users: dict[Resource, dict[Flow, None]] = {}
        self._changed: dict[Resource, None] = {}

    def begin(self, load: Mapping[Resource, float], done: Callable[[], None]) -> None:
        """Begin a flow.

        Args:
            load: resource -> the bytes that pass it until the flow has ended. A flow
                that loads no resource with limited bandwidth ends at once.
            done: a function that is called when the last byte has left.
        """
        load = {name: nbytes for name, nbytes in load.items() if nbytes > 0}
        if not load:
            self._clock.at(self._clock.now, done)
            return
        flow = Flow(load, self._clock.now, done)
        alone = True
        for resource in load:
            users = self._users.setdefault(resource, {})
            alone = alone and not users
            users[flow] = None
        if alone:
            self._go_on(flow, max_min([flow], self._capacity)[flow])
        else:
            self._share_later(load)

    def _end(self, flow: Flow, version: int) -> None:
        """End a flow, unless its rate has changed since this end was planned."""
        if flow.version != version:
            return
        shared = []
        for resource in flow.weights:
            users = self._users[resource]
            del users[flow]
            if users:
                shared.append(resource)
        if shared:
            self._share_later(shared)
        flow.done()

    def _share_later(self, resources: Iterable[Resource]) -> None:
        """Compute rates anew when all that begins and ends at this time has done so."""
        if not self._changed:
            self._clock.at(self._clock.now, self._share)
        self._changed.update(dict.fromkeys(resources))

    def _share(self) -> None:
        changed, self._changed = self._changed, {}
        for flow, rate in max_min(self._connected(changed), self._capacity).items():
            if not flow.rate / ALIKE <= rate <= flow.rate * ALIKE:
                self._go_on(flow, rate)

    def _connected(self, resources: Iterable[Resource]) -> list[Flow]:
        """Return the flows on these resources, and all that share any with them."""
        found: dict[Flow, None] = {}
        seen, ahead = set(resources), list(resources)
        while ahead:
            for flow in self._users.get(ahead.pop(), ()):
                if flow not in found:
                    found[flow] = None
                    further = [name for name in flow.weights if name not in seen]
                    seen.update(further)
                    ahead += further
        return list(found)

    def _go_on(self, flow: Flow, rate: float) -> None:
        flow.change(rate, self._clock.now)
        when = self._clock.later(flow.left / rate)
        self._clock.at(when, partial(self._end, flow, flow.version))


def max_min(
    flows: Iterable[Flow], capacity: Callable[[Resource], float]
) -> dict[Flow, float]:
    """Return the max-min fair rate of each flow, in bytes a second.

    Cost: O(F R) for F flows on R resources if all are bottlenecks of one another, and
    O(F + R) if one resource limits all.
    """
    users: dict[Resource, list[Flow]] = {}
    free: dict[Resource, float] = {}
    wanted: dict[Resource, float] = {}
    for flow in flows:
        for resource, weight in flow.weights.items():
            if resource in users:
                users[resource].append(flow)
                wanted[resource] += weight
            else:
                users[resource] = [flow]
                wanted[resource] = weight
                free[resource] = capacity(resource)
    growing = {resource: len(among) for resource, among in users.items()}
    rates: dict[Flow, float] = {}
    while users:
        level = min([free[resource] / wanted[resource] for resource in users])
        bound = level * ALIKE
        full = [name for name in users if free[name] <= bound * wanted[name]]
        for flow in [flow for name in full for flow in users[name]]:
            if flow in rates:
                continue
            rates[flow] = level
            for resource, weight in flow.weights.items():
                free[resource] -= weight * level
                wanted[resource] -= weight
                growing[resource] -= 1
        users = {name: among for name, among in users.items() if growing[name]}
    return rates


class Wire:
    """The messages between all pairs of learners, numbered for each pair and direction.

    A message's factor and losses depend on its pair and its number, so they are the
    same in each run. How long it takes depends also on the messages beside it.
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
        """Send a message now, and call `arrive` when the whole of it has arrived."""
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
