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
5. After a step, the replicas that the algorithm calls equal are equal, bit for bit: in
   H-ADPSGD those of one node.
6. Nobody waits for a learner of whose death it knows.
7. At the end of an epoch the members have made all their steps, and have the same
   consensus model, bit for bit. If they gossip, it is the mean of their parameters.

Where learners die and join, the sum is that over the members, and is taken anew at each
change of the members. Between two changes it is conserved as before, with one
exception: an exchange that one end has dropped. Then the other end must be dead, and
the sum changes by the correction that was dropped and by nothing else.

Two more faults show elsewhere: the engine itself raises `DeadlockError` when learners
wait for each other in a circle, and a run that never ends exceeds `max_events`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import Broadcast, Exchange, Invite
from espnet_distopt.core.gossip_state import GossipState
from espnet_distopt.simulation.sides import Side
from espnet_distopt.simulation.simulation import Simulation
from espnet_distopt.simulation.virtual_learner import Stepped, VirtualLearner

TOLERANCE = 1e-11
"""The largest difference, relative to 1 + |expected|, of a sum or a copy in float64."""


class InvariantError(AssertionError):
    """An invariant does not hold; the message says which one, for whom, and when."""


class Invariants:
    """The invariants of one simulation, as the function that it calls after each event.

    The constructor sets the `check` of the simulation, which must have started. An
    algorithm says what its gossip holds (`gossip_state`) and which replicas are equal
    after each step (`equal_replicas`); its class does not matter.

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
            if virtual.algorithm.gossip_state() is not None
        }
        for virtual in self._gossiping.values():
            self._follow(virtual)
        self._version = simulation.engine.members.now.version
        self._anew = False
        self._known_signs: dict[tuple[float, int, int, int], Tensor] = {}
        self._like = simulation.learners[0].learner.params
        states = self._states()
        self._expected = self._sum(states) if states else self._like
        self._replicas: dict[tuple[tuple[int, ...], int, int], Tensor] = {}
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
        side, engine = simulation.engine.last, simulation.engine
        if not engine.in_epoch:
            return
        if engine.members.now.version > 0:
            self._follow_members()
        if side is None:
            return
        if side.name == "training":
            self._check_step(side)
        states = self._states()
        if self._anew and states:
            self._check_sum(side.rank, states)
        if side.rank in states:
            self._check_published(side.rank, states[side.rank])
            self._check_sum(side.rank, states)

    def check_end(self, ends: Sequence[int]) -> None:
        """Check an epoch that has ended, and run the consensus after it.

        Args:
            ends: for each rank, the number of steps that it has when it has made all.

        Raises:
            InvariantError: an invariant does not hold.
        """
        simulation, members = self._simulation, self._simulation.engine.members
        learners = {r: simulation.learners[r].learner for r in members.now.ranks}
        for rank, learner in learners.items():
            if learner.steps < ends[rank]:
                raise self._error(rank, f"has {ends[rank] - learner.steps} steps left")
        version, gossiping = members.now.version, self._gossiping.keys() & learners
        params = [learners[rank].params.clone() for rank in sorted(gossiping)]
        models = simulation.consensus_models()
        rank, model = next(iter(models.items()))
        for other in models:
            if not torch.equal(models[other], model):
                raise self._error(other, f"has another consensus model than {rank}")
        if params and members.now.version == version:
            mean = torch.stack(params).mean(0)
            self._check_close(rank, model, mean, "has a consensus that is not the mean")

    def _follow_members(self) -> None:
        """Check what the members allow, and take the sum over those that live now."""
        engine = self._simulation.engine
        members, dropped = engine.members, engine.gossip.dropped
        for rank, peer, (received, sent, _) in dropped:
            if peer in members.now.ranks and not members.incarnation(peer):
                raise self._error(rank, f"drops an exchange with {peer}, which lives")
            if rank in members.now.ranks:
                difference = self._parameters(received) - self._parameters(sent)
                weight = next(iter(self._states().values())).weight
                self._expected = self._expected - weight * difference
        dropped.clear()
        for rank in members.now.ranks:
            gossip = self._simulation.sides[rank].gossip
            if not (gossip.waiting and isinstance(gossip.effect, (Invite, Exchange))):
                continue
            peer, known = gossip.effect.peer, members.learners[rank].dead
            # It may know of the death of an earlier incarnation of the peer.
            gone = peer not in members.now.ranks
            if gone and known.get(peer) == members.incarnation(peer):
                raise self._error(rank, f"waits for {peer}, of whose death it knows")
        if members.now.version > self._version:
            self._version, self._anew = members.now.version, True

    def _parameters(self, message: Tensor) -> Tensor:
        """Return the parameters (P,) of a message; a rounded one is longer."""
        return message[: len(self._like)].to(self._like)

    def _check_step(self, training: Side) -> None:
        virtual = self._simulation.learners[training.rank]
        learner = virtual.learner
        if learner.updates != learner.steps:
            raise self._error(
                training.rank,
                f"has made {learner.updates} updates in {learner.steps} steps",
            )
        equal = virtual.algorithm.equal_replicas(learner)
        if len(equal) > 1 and isinstance(training.effect, Stepped):
            incarnation = self._simulation.engine.members.incarnation(training.rank)
            key = equal, learner.steps, incarnation
            first = self._replicas.setdefault(key, learner.params.clone())
            if not torch.equal(first, learner.params):
                raise self._error(
                    training.rank, f"has left its equals in step {learner.steps}"
                )

    def _check_published(self, rank: int, state: GossipState) -> None:
        if state.age > state.max_age:
            raise self._error(
                rank, f"has a correction {state.age} > {state.max_age} steps old"
            )
        if state.copy is None or self._passes_on(rank):
            return
        live = self._gossiping[rank].learner.params
        for difference in state.differences:
            live = live + state.weight * difference
        self._check_close(rank, state.copy, live, "publishes a wrong copy")

    def _check_sum(self, rank: int, states: Mapping[int, GossipState]) -> None:
        if any(map(self._passes_on, states)):
            return
        if self._anew:
            self._expected, self._anew = self._sum(states), False
        else:
            what = "has changed the learners' mean"
            self._check_close(rank, self._sum(states), self._expected, what)

    def _states(self) -> dict[int, GossipState]:
        """Return what the gossip of each member that has gossip holds now, by rank."""
        living = self._simulation.engine.members.now.ranks
        states = {
            rank: self._gossiping[rank].algorithm.gossip_state()
            for rank in living
            if rank in self._gossiping
        }
        return {rank: state for rank, state in states.items() if state is not None}

    def _passes_on(self, rank: int) -> bool:
        """Return whether the leader `rank` is broadcasting a correction to its node.

        Meanwhile neither the snapshot nor the live parameters contain the correction.
        Only an algorithm with nodes broadcasts within an epoch.
        """
        training = self._simulation.sides[rank].training
        return training.waiting and isinstance(training.effect, Broadcast)

    def _sum(self, states: Mapping[int, GossipState]) -> Tensor:
        """Return the sum of all parameters and corrections, shape (P,)."""
        terms = [self._gossiping[rank].learner.params for rank in states]
        for state in states.values():
            terms += state.differences
        differences = len(terms) - len(states)
        in_flight = self._simulation.in_flight.values()
        for received, sent, _ in in_flight:
            terms += map(self._parameters, (received, sent))
        weight = next(iter(states.values())).weight
        signs = self._signs(weight, len(states), differences, len(in_flight))
        return signs @ torch.stack(terms)

    def _signs(
        self, weight: float, learners: int, differences: int, in_flight: int
    ) -> Tensor:
        """Return the factor of each term of the sum.

        Parameters count in full, and a correction is `weight` of a difference.
        """
        key = weight, learners, differences, in_flight
        if key not in self._known_signs:
            signs = [1.0] * learners + [weight] * differences
            signs += [weight, -weight] * in_flight
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
