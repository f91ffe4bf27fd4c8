"""The process-group driver: one learner a process, over `torch.distributed`.

Collectives run on the training thread. Gossip runs on a thread of its own, over TCP
connections of its own, from CPU memory (pinned for a GPU), because a group of gloo or
NCCL fails as a whole when one of its learners dies. The programs of an algorithm run
under one lock, which the driver releases while it carries out an effect. So the code
between two yields is atomic, and long work of the gossip side (`RunInBackground`) does
not hold up the training thread. Whom a learner meets, joins and leaves is in
`participant`.
"""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from espnet_distopt.core.effects import (
    LIFECYCLE,
    AwaitGossip,
    Barrier,
    Begin,
    Collective,
    Effect,
    GroupCollective,
    Published,
    StartGossip,
    StopGossip,
    Wait,
)
from espnet_distopt.core.membership import Meeting, Members
from espnet_distopt.distributed.collectives import Collectives, InFlight
from espnet_distopt.distributed.launcher import announce_survival
from espnet_distopt.distributed.participant import Participant
from espnet_distopt.distributed.surviving import Attempt, SurvivingCollectives


class ProcessGroupDriver(Participant):
    """Carries out effects between the processes of the default process group.

    Without a process group it serves one learner alone. All processes construct it
    together, because it connects them.

    Args:
        silence: seconds without a heartbeat after which a learner counts as lost: it
            has died, was stopped, or is cut off by the network.
        recording: whether to keep `record`.

    Attributes:
        record: the sections of the algorithm's programs that have run in epochs, in
            their order, for tests that repeat them; None if they are not kept.
        rank, size, per_node, joins, spent: those of `Participant`.
    """

    def __init__(
        self,
        silence: float = 30,
        recording: bool = False,
    ) -> None:
        super().__init__(silence, [] if recording else None)
        self._collectives = Collectives(self._groups, self.spent)
        self._surviving: SurvivingCollectives | None = None
        self._unit: set[int] = set()

    def survive(
        self,
        lost_with: Callable[[int], Iterable[int]],
        change: Callable[[Members], None],
    ) -> None:
        """Let the training go on when a learner is lost, from now on.

        Args:
            lost_with: returns the ranks that leave the members with a lost one.
            change: is called between two yields when the members have changed.
        """
        if self._liveness is None or self._groups is None:
            return
        self._change, self._unit = change, set(lost_with(self.rank))
        if self._surviving is None:
            self._surviving = SurvivingCollectives(
                self._groups,
                self._collectives,
                self._watch,
                self._meetings,
                self._waiting,
            )
        self._liveness.survive(lost_with)
        if not self.joins:  # A replacement has met nobody yet.
            announce_survival()

    def run(self, program: Generator[Effect, Any, Any], in_epoch: bool = False) -> Any:
        """Run `program` on the calling thread and return its value.

        Args:
            program: a program of the training side.
            in_epoch: whether it is part of an epoch's training, which is recorded.

        Raises:
            PeerLostError: another learner has died; the message names it.
        """
        result: Any = None
        effect: Any = None
        while True:
            with self._monitor:
                if self._gossip is not None:
                    self._gossip.check()
                if self._surviving is not None:
                    self._watch.check("a step")
                if in_epoch and not isinstance(effect, LIFECYCLE):
                    self._note_section()
                try:
                    with self._in_order():
                        effect = program.send(result)
                except StopIteration as stop:
                    return stop.value
                progress = self._gossip.progress if self._gossip else 0
            result = self._perform(effect, progress)

    def _in_order(self) -> AbstractContextManager[None]:
        """Return the context of a section: on a GPU it waits for the gossip's last."""
        gossip = self._gossip
        return gossip.streams.training_section() if gossip else nullcontext()

    def _note_section(self) -> None:
        if self.record is not None:
            self.record.append(("training", None))

    def _perform(self, effect: Effect, progress: int) -> Any:
        match effect:
            case Collective():
                return self._wait(self._begin(effect))
            case Begin(collective):
                return self._begin(collective, late=True)
            case Wait(handle):
                return self._wait(handle)
            case Barrier(pausing):
                return self._barrier(pausing)
            case AwaitGossip() | StartGossip() | Published() | StopGossip():
                return self._turn_to_gossip(effect, progress)
            case _:
                raise TypeError(f"{effect} belongs in a gossip program")

    def _turn_to_gossip(self, effect: Effect, progress: int) -> None:
        """Carry out an effect on the gossip side; one learner alone has none."""
        gossip = self._gossip
        if gossip is None:
            return
        match effect:
            case StartGossip(program, device):
                gossip.start(program, device)
            case AwaitGossip():
                gossip.wait(progress)
            case Published() if gossip.thread is not None:
                with self._monitor:
                    gossip.publish()
                    self._end_step()
            case StopGossip():
                gossip.stop()

    # Collectives

    def _begin(self, effect: Collective, late: bool = False) -> InFlight | Attempt:
        surviving = self._surviving
        if surviving is None or not isinstance(effect, GroupCollective):
            return self._collectives.begin(effect)
        if not self._survives(effect):
            return self._collectives.begin(effect)
        with self._watch.asking("a collective"):
            return surviving.begin(effect, late)

    def _survives(self, effect: GroupCollective) -> bool:
        """Return whether the loss of some of its learners leaves others.

        Those of one unit, as the learners of a node, are lost together.
        """
        return effect.ranks is None or not self._unit.issuperset(effect.ranks)

    def _wait(self, handle: InFlight | Attempt) -> Tensor | None:
        if isinstance(handle, InFlight):
            return self._collectives.wait(handle)
        assert self._surviving is not None
        result = self._surviving.wait(handle)
        with self._monitor:
            self._tell(self.members if result is None else self._surviving.agreed)
        return result

    # Meeting

    def _barrier(self, pausing: bool) -> Meeting:
        """Wait for all living learners, however long they take.

        Comes before the collectives at the end of an epoch, which a learner may reach
        long before a slow one.
        """
        if self._liveness is None:
            return Meeting(pausing, Members.everybody(self.size))
        start = time.perf_counter()
        self._barriers += 1
        what, pause = "the end of an epoch", f"pause/{self._barriers}"
        with self._watch.asking(what):
            if pausing:
                self._watch.store.set(pause, b"1")
        gossip = self._gossip
        closes = gossip.rounds if gossip and gossip.thread is None else 0
        met = self._meetings.meet(f"epoch/{self._barriers}", what, closes=closes)
        self.spent["wait_time"] += time.perf_counter() - start
        if self._surviving is not None:
            self._surviving.agreed = met
            with self._monitor:
                self._tell(met)
                self._told = met
        with self._watch.asking(what):
            return Meeting(bool(self._watch.store.check([pause])), met)
