"""The module checks, after every event of a simulation, what no schedule may break.

These are the invariants:

1. Gossip conserves the sum over the learners. The live parameters, the pending
   corrections, and the corrections that an exchange has not yet delivered add up to the
   starting parameters plus all updates of the optimizers. This also finds a gradient
   that is lost or applied twice.
2. Each step of a learner makes exactly one update.
3. No correction is older than `max_staleness` steps.
4. The newest snapshot equals the live parameters plus the pending corrections. So a
   learner that takes part in two exchanges during one step sends different parameters
   in each.
5. After a step, the replicas of one node (H-ADPSGD) are equal, bit for bit.

Two more faults show elsewhere: the engine itself raises `DeadlockError` when learners
wait for each other in a circle, and a run that never ends exceeds `max_events`.
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
"""The largest difference, relative to 1 + |expected|, of a sum or a copy in float64."""


class InvariantError(AssertionError):
    """An invariant does not hold; the message says which one, for whom, and when."""


class Invariants:
    """The invariants of one simulation, as the function that it calls after each event.

    The constructor sets the `check` of the simulation, which must have started.
    Attributes of an algorithm tell which invariants concern it: one with `neighbours`
    gossips by means of a `snapshot`, and one with a `node` has replicas that must be
    equal.

    Args:
        simulation: the simulation to check.
        max_events: the number of events after which the simulation counts as endless.
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
        """Add each update of a learner's optimizer to the expected sum."""
        params = virtual.learner.params
        before = torch.empty_like(params)

        def remember(*_: Any) -> None:
            before.copy_(params)

        def follow(*_: Any) -> None:
            self._expected.add_(params).sub_(before)

        virtual.optimizer.register_step_pre_hook(remember)
        virtual.optimizer.register_step_post_hook(follow)

    def __call__(self, simulation: Simulation) -> None:
        """Check all that the last event may have changed.

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
        """Return the snapshot of `rank`, and the bound on its age in steps."""
        algorithm: Any = self._gossiping[rank].algorithm
        return algorithm.snapshot, algorithm.config.max_staleness

    def _passes_on(self, rank: int) -> bool:
        """Return whether the leader `rank` is broadcasting a correction to its node.

        Meanwhile neither the snapshot nor the live parameters contain the correction.
        """
        training = self._simulation.sides[rank].training
        return training.waiting and isinstance(training.effect, Broadcast)

    def _sum(self) -> Tensor:
        """Return the sum of all parameters and corrections, shape (P,)."""
        terms = list(self._params)
        for rank in self._gossiping:
            terms += self._published(rank)[0].unapplied()
        differences = len(terms) - len(self._params)
        in_flight = self._simulation.in_flight.values()
        for received, sent, _ in in_flight:
            # A rounded message is longer: its parameters come first.
            size = len(self._like)
            terms += [part[:size].to(self._like) for part in (received, sent)]
        return self._signs(differences, len(in_flight)) @ torch.stack(terms)

    def _signs(self, differences: int, in_flight: int) -> Tensor:
        """Return the factor of each term of the sum.

        Parameters count in full, and a correction is half of a difference.

        Args:
            differences: the number of differences that the snapshots hold.
            in_flight: the number of exchanges that have not delivered yet; each adds
                half of what the learner will receive minus half of what it has sent.
        """
        key = differences, in_flight
        if key not in self._known_signs:
            signs = [1.0] * len(self._params) + [HALF] * differences
            signs += [HALF, -HALF] * in_flight
            self._known_signs[key] = self._like.new_tensor(signs)
        return self._known_signs[key]

    def _check_close(self, rank: int, got: Tensor, expected: Tensor, what: str) -> None:
        # The models are small, and plain numbers are much faster than small tensors.
        for x, y in zip(got.tolist(), expected.tolist(), strict=True):
            if not abs(x - y) <= TOLERANCE * (1 + abs(y)):
                raise self._error(rank, f"{what}: {x!r}, not {y!r}")

    def _error(self, who: int | str, what: str) -> InvariantError:
        name = who if isinstance(who, str) else f"learner {who}"
        return InvariantError(f"at {self._simulation.seconds:g} s, {name} {what}")
