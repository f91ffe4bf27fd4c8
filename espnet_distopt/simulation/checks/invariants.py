"""What must hold after every event of a simulation, whatever the schedule.

- The mean of the learners is conserved: live parameters, pending corrections, and those
  that an exchange still brings, add up to the start plus the optimizers' updates. So a
  gradient that is lost, or applied twice, shows here, too.
- Every step has made one update.
- No exchange is older than the bound.
- The newest published copy is the live parameters plus the pending corrections, so that
  a learner that is asked twice in a step does not give one answer twice.
- After a step, the replicas of one node (H-ADPSGD) are equal, bit for bit.

That learners have one exchange in flight is the engine's own rule. A cycle of waits
ends in `DeadlockError`; learners that never end run into `max_events`.
"""

from typing import Any

import torch
from torch import Tensor

from espnet_distopt.algorithms.gossip.snapshot import HALF
from espnet_distopt.core.effects import Broadcast
from espnet_distopt.simulation.sides import Side
from espnet_distopt.simulation.simulation import Simulation
from espnet_distopt.simulation.virtual_learner import Stepped, VirtualLearner

TOLERANCE = 1e-11
"""Of sums and copies, in float64."""


class InvariantError(AssertionError):
    """An invariant does not hold; the message says which, where and when."""


class Invariants:
    """Becomes the `check` of a simulation that has started.

    It knows algorithms by what they have: those with `neighbours` gossip by means of a
    `published` copy; those with a `node` have replicas that must be equal.

    Args:
        simulation: what to look at.
        max_events: after so many more, the simulation counts as endless.
    """

    def __init__(self, simulation: Simulation, max_events: int = 100_000) -> None:
        self._simulation = simulation
        self._left = max_events
        self._gossiping = {
            virtual.learner.rank: virtual
            for virtual in simulation.learners
            if getattr(virtual.algorithm, "neighbours", ())
        }
        for virtual in self._gossiping.values():
            self._follow(virtual)
        self._leaders = [
            rank
            for rank, virtual in self._gossiping.items()
            if hasattr(virtual.algorithm, "node")
        ]
        self._params = [v.learner.params for v in self._gossiping.values()]
        self._known_signs: dict[tuple[int, int], Tensor] = {}
        self._like = simulation.learners[0].learner.params
        self._expected = self._sum() if self._gossiping else self._like
        self._replicas: dict[tuple[tuple[int, ...], int], Tensor] = {}
        simulation.check = self

    def _follow(self, virtual: VirtualLearner) -> None:
        """Let the expected sum follow the updates of one optimizer."""
        params = virtual.learner.params
        before = torch.empty_like(params)

        def remember(*_: Any) -> None:
            before.copy_(params)

        def follow(*_: Any) -> None:
            self._expected.add_(params).sub_(before)

        virtual.optimizer.register_step_pre_hook(remember)
        virtual.optimizer.register_step_post_hook(follow)

    def __call__(self, simulation: Simulation) -> None:
        """Look at whatever the last event may have changed.

        Raises:
            InvariantError: an invariant does not hold.
        """
        self._left -= 1
        if self._left < 0:
            raise self._error("everybody", "runs on for ever")
        side = simulation.engine.last
        if side is None or not simulation.engine.in_epoch:
            return
        if side.name == "training":
            self._check_step(side)
        if side.rank in self._gossiping:
            self._check_published(side.rank)
            self._check_sum(side.rank)

    def _check_step(self, training: Side) -> None:
        virtual = self._simulation.learners[training.rank]
        learner = virtual.learner
        if learner.updates != learner.steps:
            raise self._error(
                training.rank,
                f"has made {learner.updates} updates in {learner.steps} steps",
            )
        node = getattr(virtual.algorithm, "node", None)
        if node is not None and isinstance(training.effect, Stepped):
            key = node, learner.steps
            first = self._replicas.setdefault(key, learner.params.clone())
            if not torch.equal(first, learner.params):
                raise self._error(
                    training.rank, f"has left its node in step {learner.steps}"
                )

    def _check_published(self, rank: int) -> None:
        published, bound = self._published(rank)
        oldest = max([published.age(), *published.staleness])
        if oldest > bound:
            raise self._error(rank, f"has a correction {oldest} > {bound} steps old")
        if rank not in self._leaders or not self._passes_on(rank):
            live = self._gossiping[rank].learner.params
            for difference in published.unapplied():
                live = live + HALF * difference
            if not published.outdated:
                self._check_close(rank, published._copy, live, "publishes a wrong copy")

    def _check_sum(self, rank: int) -> None:
        if not any(map(self._passes_on, self._leaders)):
            what = "has changed the learners' mean"
            self._check_close(rank, self._sum(), self._expected, what)

    def _published(self, rank: int) -> tuple[Any, int]:
        """Return the published copy of `rank`, and the bound on its age."""
        algorithm: Any = self._gossiping[rank].algorithm
        return algorithm.snapshot, algorithm.config.max_staleness

    def _passes_on(self, rank: int) -> bool:
        """Return whether a leader is passing a correction on: it is nowhere, then."""
        training = self._simulation.sides[rank].training
        return training.waiting and isinstance(training.effect, Broadcast)

    def _sum(self) -> Tensor:
        """Return the sum of parameters and corrections, (P,)."""
        terms = list(self._params)
        for rank in self._gossiping:
            terms += self._published(rank)[0].unapplied()
        differences = len(terms) - len(self._params)
        in_flight = self._simulation.in_flight.values()
        for received, sent, _ in in_flight:
            size = len(self._like)  # a rounded message has more behind it
            terms += [part[:size].to(self._like) for part in (received, sent)]
        return self._signs(differences, len(in_flight)) @ torch.stack(terms)

    def _signs(self, differences: int, in_flight: int) -> Tensor:
        """Return the factors of all terms: corrections are half of a difference."""
        key = differences, in_flight
        if key not in self._known_signs:
            signs = [1.0] * len(self._params) + [HALF] * differences
            signs += [HALF, -HALF] * in_flight
            self._known_signs[key] = self._like.new_tensor(signs)
        return self._known_signs[key]

    def _check_close(self, rank: int, got: Tensor, expected: Tensor, what: str) -> None:
        # Of small models the numbers themselves are much faster than tensors.
        for x, y in zip(got.tolist(), expected.tolist(), strict=True):
            if not abs(x - y) <= TOLERANCE * (1 + abs(y)):
                raise self._error(rank, f"{what}: {x!r}, not {y!r}")

    def _error(self, who: int | str, what: str) -> InvariantError:
        name = who if isinstance(who, str) else f"learner {who}"
        return InvariantError(f"at {self._simulation.seconds:g} s, {name} {what}")
