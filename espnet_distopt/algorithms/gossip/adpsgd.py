"""Asynchronous decentralised SGD (AD-PSGD; Lian et al. 2018, arXiv 1710.06952).

Each learner trains on its own replica. Beside the training loop, pairs of neighbours
average their replicas. Each pair does so on its own, and there is no barrier:

    X_{k+1} = X_k W_k - lr g_i(X_{k-tau_k}) e_i^T        (section 3, eq. 2 and 3)

    paper                 here
    X (columns x^i)       the `learner.params` of each learner
    W_k (1/2, 1/2)        one `Exchange` between an active and a passive learner
    tau_k                 staleness, `Snapshot.staleness`
    active / passive      even / odd places among the living learners: active learners
                          invite, passive ones only answer, so no cycle of waits can
                          form

The pair average is applied as a correction, x_a += (s_p - s_a) / 2, where s_a and s_p
are the snapshots that the two learners have sent (see `snapshot`). So updates that an
optimizer makes during an exchange are never lost, and the mean over all learners is
conserved. Optimizers keep their own moments; only parameters are averaged.

A learner's neighbours are those on a ring. With `topology: random` they are all
learners of the other colour, that is, all passive ones of an active one (randomized
mixing, as in Zhang et al. 2020, arXiv 2002.01119). The longer a ring is, the slower it
mixes; random pairs hardly become slower, and so are the default for more than 16
learners. A ring of an odd number of learners is left open between its two ends, because
both ends are active. Any number of learners can train.

The training survives the death of any learner. Its neighbours drop the exchange that
they have with it, and the ring closes over the gap (`core.topology.living_ring`).
Colours are dealt at the beginning of each epoch and hold until its end. If all learners
of one colour die, the others train on without exchanges until then.

A learner that has ended a step during an exchange waits for the end of its next step
before it exchanges again, so that it sends a new snapshot.

Cost for n bytes of parameters: n bytes a step at most, beside the computation (half of
that with `exchange: bfloat16`, see `snapshot`), and one message a learner at the end of
an epoch. The training thread publishes the snapshot and applies corrections: two passes
over the parameters a step, and fewer while an exchange takes several steps. Memory: 2P
elements, or 3P if a learner is invited twice before its step ends.
"""

import random
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from espnet_distopt.algorithms.base import Algorithm
from espnet_distopt.algorithms.gossip.snapshot import Rounded, Snapshot
from espnet_distopt.core.effects import (
    AllReduceMean,
    AwaitGossip,
    AwaitInvitation,
    AwaitStep,
    Effect,
    Exchange,
    Invite,
    Program,
    Retire,
)
from espnet_distopt.core.gossip_state import GossipState
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.core.topology import (
    LONGEST_RING,
    deal_colours,
    living_other_colour,
    living_ring,
)
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.noise_share import PairedNoiseShare

GossipTopology = Literal["ring", "random", "randomized_ring"]
"""Whom a learner may exchange with, see `adpsgd`."""


@dataclass(frozen=True, kw_only=True)
class AdpsgdConfig:
    """Options of `adpsgd`.

    Attributes:
        topology: the learners that an active learner may invite: its neighbours on a
            `ring`, or any passive learner (`random`); each time it picks one of them
            uniformly. On a `randomized_ring`, whose order changes, it invites its two
            neighbours in turn. None means a ring of up to 16 learners, and `random` for
            more.
        exchange: float32 sends the parameters as they are; bfloat16 sends what has
            changed in them, in half the bytes, see `snapshot`.
        max_staleness: the bound on staleness in steps (T in the paper): training waits
            for an exchange that has been in flight for this many of its steps.
        from_consensus: whether learners begin each epoch at the consensus model. If
            False, each begins at its own parameters.
        seed: seed of the random choice of neighbours, and of the randomized ring.
        second_moment: consistent corrects Adam's second moment, which is that of this
            learner's own batches, to that of all learners' batches together, see
            `optimizers.consistent`; local leaves it as it is.
    """

    topology: GossipTopology | None = None
    exchange: Literal["float32", "bfloat16"] = "float32"
    max_staleness: int = 16
    from_consensus: bool = False
    seed: int = 0
    second_moment: Literal["consistent", "local"] = "consistent"

    def __post_init__(self) -> None:
        if self.max_staleness < 1:
            raise InputError(f"max_staleness must be >= 1, not {self.max_staleness}")


class Colours:
    """The place of one learner among those that gossip.

    Attributes:
        actives: the ranks that are active in this epoch, dead ones included.
        active: whether this learner invites others; a passive one only answers.
        neighbours: ranks of the living learners that this one may exchange with; none
            if this learner does not gossip, or all of the other colour have died.
        turn: how often this learner has chosen a neighbour in turn.
    """

    def __init__(
        self,
        topology: GossipTopology,
        rank: int,
        living: Sequence[int],
        seed: int = 0,
    ) -> None:
        self._find = living_ring if topology == "ring" else living_other_colour
        self._shuffled = topology == "randomized_ring"
        self._seed = seed
        self._rank = rank
        self.turn = 0
        self.deal(living)

    def deal(self, living: Sequence[int]) -> None:
        """Deal the colours of an epoch; all learners do so with the same `living`."""
        self.hold(deal_colours(living), living)

    def change(self, living: Sequence[int]) -> None:
        """Find the neighbours anew: learners have died or joined within the epoch."""
        self.hold(self.actives, living)

    def hold(self, actives: Sequence[int], living: Sequence[int]) -> None:
        """Take over the colours of an epoch."""
        self.actives = tuple(actives)
        self.active = self._rank in self.actives
        gossips = self._rank in living
        self.neighbours = (
            self._find(self._rank, self.actives, living) if gossips else ()
        )

    def choose(self, source: random.Random) -> int:
        """Return the neighbour to invite: at random, or in turn."""
        if not self._shuffled:
            return source.choice(self.neighbours)
        self.turn += 1
        return self._on_randomized_ring(self.turn - 1)

    def _on_randomized_ring(self, turn: int) -> int:
        """Return the passive learner after this one on a random ring, then the other.

        Two turns have the same ring, whose actives and passives alternate. As long as
        learners keep step, each turn pairs all of them, and nobody is invited twice.
        """
        drawn = random.Random(f"{self._seed} gossip ring {turn // 2}")
        actives, passives = list(self.actives), list(self.neighbours)
        drawn.shuffle(actives)
        drawn.shuffle(passives)
        return passives[(actives.index(self._rank) - turn % 2) % len(passives)]

    def passives(self, living: Sequence[int]) -> tuple[int, ...]:
        """Return the passive ones of `living`."""
        return tuple(rank for rank in living if rank not in self.actives)


class Adpsgd(Algorithm):
    """Asynchronous averaging of pairs of learners.

    Attributes:
        config: the options.
        colours: who invites, who answers, and this learner's neighbours.
        snapshot: the copy of this learner's parameters that its neighbours receive.
    """

    noise: PairedNoiseShare
    wants_gossip = True
    survives = True

    def __init__(self, config: AdpsgdConfig, learner: Learner) -> None:
        self.config = config
        ranks = self._gossip_ranks(learner)
        everyone = self._possible_ranks(learner)
        short = len(everyone) <= LONGEST_RING
        topology = config.topology or ("ring" if short else "random")
        self.colours = Colours(topology, learner.rank, ranks, config.seed)
        self._count_batches(ranks)
        # One that is alone may get company again, by a replacement.
        self._gossips = learner.rank in everyone and len(everyone) > 1
        consistent = config.second_moment == "consistent"
        self.noise = PairedNoiseShare(learner, consistent and len(everyone) > 1)
        self.snapshot = Snapshot(learner, self._gossips, self.noise)
        self._rounded: Rounded | None = None
        if config.exchange == "bfloat16":
            shown = learner.params if self._gossips else learner.params[:0]
            self._rounded = Rounded(shown, self.noise.message_size * self._gossips)
        self._choice = random.Random(f"{config.seed} {learner.rank}")
        self._exchanges = 0
        self._reported: Counter[int] = Counter()

    def _gossip_ranks(self, learner: Learner) -> tuple[int, ...]:
        """Return the living ranks that gossip, in the order of the ring."""
        return learner.members.ranks

    def _possible_ranks(self, learner: Learner) -> tuple[int, ...]:
        """Return the ranks that gossip if all learners live."""
        return tuple(range(learner.size))

    def _count_batches(self, ranks: tuple[int, ...]) -> None:
        if self.config.second_moment == "consistent":
            self.averaged_batches = len(ranks)

    def change_members(self, learner: Learner, members: Members) -> None:
        """Close the ring over learners that have died, and let in those that join."""
        super().change_members(learner, members)
        ranks = self._gossip_ranks(learner)
        self.colours.change(ranks)
        self._count_batches(ranks)

    def start(self, learner: Learner) -> Program:
        """Take over learner 0's parameters, and publish them."""
        yield from super().start(learner)
        self.snapshot.publish()
        if self._rounded:
            self._rounded.refer_to(learner.params)

    def after_step(self, learner: Learner) -> Program:
        """Apply the pending corrections and publish; wait only at `max_staleness`."""
        while self.snapshot.age() >= self.config.max_staleness:
            yield AwaitGossip()
        yield from self._correct(learner)

    def _correct(self, learner: Learner) -> Program:
        """Apply the pending corrections and publish."""
        yield from ()
        self.noise.use()
        self.noise.sample()
        self.snapshot.publish()

    def gossip(self, learner: Learner) -> Program:
        """Exchange with one neighbour after another."""
        if not self._gossips:
            return
        colours = self.colours
        if colours.active:
            while (yield AwaitStep()):
                if self.snapshot.outdated or not colours.neighbours:
                    continue
                peer = colours.choose(self._choice)
                self.snapshot.keep(self.config.max_staleness // 2)
                yield Invite(peer)
                yield from self._average_with(peer)
            passives = colours.passives(self._gossip_ranks(learner))
            yield Retire(colours.actives, passives)
        else:
            while (peer := (yield AwaitInvitation(colours.actives))) is not None:
                yield from self._average_with(peer)
                while self.snapshot.outdated and (yield AwaitStep()):
                    pass

    def _average_with(self, peer: int) -> Program:
        """Exchange with `peer`; if the exchange is dropped, nothing has happened."""
        copy = self.snapshot.begin_exchange()
        if self._rounded:
            messages = yield from self._rounded.swap(peer, copy)
            if messages is None:
                self.snapshot.cancel_exchange()
                return
            yield from self.snapshot.end_exchange(*messages)
        else:
            into = self.snapshot.spare()
            received = yield Exchange(peer, copy, into)
            if received is None:
                self.snapshot.cancel_exchange(into)
                return
            yield from self.snapshot.end_exchange(received)
        self._exchanges += 1

    def finish(self, learner: Learner) -> Program:
        """Apply the last corrections, and deal the colours of the next epoch."""
        self.colours.deal(self._gossip_ranks(learner))
        self.noise.begin_epoch()
        yield from self._correct(learner)

    def pause(self, learner: Learner) -> Program:
        """Apply the last corrections, because the saved parameters would lack them."""
        yield from self._correct(learner)

    def lockstep(self, learner: Learner) -> tuple[int, ...]:
        """Return this learner's rank alone: no learner steps together with another."""
        return (learner.rank,)

    def next_stop(self, learner: Learner) -> int:
        """Return the present number of steps: a learner can stop at once."""
        return learner.steps

    def gossip_state(self) -> GossipState | None:
        """Return the snapshot's state; None if the learner exchanges with nobody."""
        if not self._gossips:
            return None
        return self.snapshot.state(self.config.max_staleness)

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the mean of the living learners' parameters. Cost: 2n(N-1)/N."""
        mean = yield from self._mean(learner, learner.params.detach().clone())
        if self.config.from_consensus:
            learner.params.copy_(mean)
            self.snapshot.publish()
        if self._rounded:
            self._rounded.refer_to(mean)
        return mean

    def _mean(self, learner: Learner, tensor: Tensor) -> Generator[Effect, Any, Tensor]:
        """Replace `tensor` by its mean over the learners, and return it."""
        yield AllReduceMean(tensor)
        return tensor

    def metrics(self) -> dict[str, float]:
        """Return figures about the time since the last call, for the log.

        exchanges is the number of exchanges of this learner. staleness is the mean, and
        staleness_max the largest, of the staleness of the corrections that were
        applied, in steps of this learner; both are missing if none was applied.
        `snapshot.staleness` counts all corrections since construction, and this method
        does not change it.
        """
        staleness = self.snapshot.staleness - self._reported
        self._reported = self.snapshot.staleness.copy()
        figures = {"exchanges": float(self._exchanges)}
        self._exchanges = 0
        if staleness:
            total = sum(steps * times for steps, times in staleness.items())
            figures["staleness"] = total / staleness.total()
            figures["staleness_max"] = float(max(staleness))
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the choice of neighbours, and the bfloat16 reference."""
        version, internal, gauss = self._choice.getstate()
        reference = self._rounded.reference.clone() if self._rounded else None
        return {
            "choice": [version, list(internal), gauss],
            "turn": self.colours.turn,
            "reference": reference,
            "actives": list(self.colours.actives),
            "noise": self.noise.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the choice of neighbours, and publish the restored parameters.

        Raises:
            InputError: the state was saved with exchange: float32, and this learner
                exchanges in bfloat16.
        """
        version, internal, gauss = state["choice"]
        self._choice.setstate((version, tuple(internal), gauss))
        self.colours.turn = state["turn"]
        self._load_model(state)

    def join(self, learner: Learner, state: dict[str, Any]) -> None:
        """Publish the member's parameters, and take over the colours of the epoch."""
        self.colours.hold(state["actives"], self._gossip_ranks(learner))
        self._load_model(state)

    def _load_model(self, state: dict[str, Any]) -> None:
        """Publish the parameters, and take over the reference that messages round."""
        self.noise.load_state_dict(state["noise"])
        self.snapshot.publish()
        if self._rounded is None:
            return
        if state.get("reference") is None:
            raise InputError(
                "the state was saved with exchange: float32; resume with the same, or "
                "remove the experiment's distopt/ folder to begin from the consensus"
            )
        # A learner that had nobody to exchange with has none; that of `start` holds.
        if len(state["reference"]):
            self._rounded.refer_to(state["reference"])
